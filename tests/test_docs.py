"""The examples in docs/ run."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from distributed import Client
from typer.testing import CliRunner

import dasktune as dt
from dasktune.cli import app
from dasktune.cluster.local import local_client
from dasktune.trainer.lifecycle import run_alone
from dasktune.types import TrialState
from tests.pages import page_text, script

DOCS = Path(__file__).parents[1] / "docs"
TUNERS = (DOCS / "tuners.md").read_text()


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the page from its beginning to its end; return the names it has defined."""
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("docs"))
        for block in re.findall(r"```python\n(.*?)```", TUNERS, re.DOTALL):
            exec(compile(block, "tuners.md", "exec"), names)
    return names


def test_the_page_of_the_format_reads_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "checkpoint-format.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "checkpoint-format.md", "exec"), names)
    for found in (names["with_zarr"], names["with_numpy"]):
        assert found["state['weights']"].tolist() == names["state"]["weights"].tolist()
    assert names["document"]["state"] == {"dict": [["weights", {"tensor": 0}], ["epoch", 3]]}


def test_the_page_of_the_forest_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (DOCS / "forest.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "forest.md", "exec"), {})
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 4
    assert shown[0] in page


def test_the_page_of_pop_runs() -> None:
    names: dict[str, Any] = {}
    page = (DOCS / "pop.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "pop.md", "exec"), names)
    assert names["found"].time_to(0.75) is not None
    assert names["tuner"].max_steps == 40


def test_the_page_of_fingerprints_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (DOCS / "fingerprints.md").read_text()
    study_file, *blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    outputs = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shapes.py").write_text(study_file)
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, "fingerprints.md", "exec"), names)
    names["covered"].close()
    assert str(names["costs"]).endswith("merge rate q = 1.333; p = 1.000, 1.000")

    def command(*arguments: str) -> str:
        done = CliRunner().invoke(app, [*arguments[:1], "shapes.py", *arguments[1:]])
        return done.stdout + done.stderr

    assert command("fingerprint").startswith(outputs[0])
    names["shapes"].study().close()
    assert outputs[1] in command("fingerprint", "--config", "size=large")
    assert outputs[2].strip() in command("run", "--config", "size=large")
    sys.modules.pop("shapes", None)


@pytest.mark.process
@pytest.mark.parametrize(("name", "steps"), [("loop", 2 * (4 + 2 + 2)), ("drawn", 4 * 6)])
def test_the_functions_of_the_page_train_as_alone(
    name: str, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_worker: Client
) -> None:
    page = (DOCS / "functions.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (study_file,) = (block for block in blocks if block.startswith(f"# {name}.py\n"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{name}.py").write_text(study_file)
    loop = import_module(name)
    study = loop.study()
    study.optimize(loop.tuner(), client=one_worker, progress=False, check=False)
    assert study.summary()["steps_executed"] == steps
    for trial in study.trials:
        assert run_alone(loop.train, trial.sequences, 6).metrics == trial.metrics
    sys.modules.pop(name)


@pytest.mark.process
def test_the_first_study_trains_what_its_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_worker: Client
) -> None:
    page = (DOCS / "first-study.md").read_text()
    study_file, look = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    outputs = re.findall(r"```text\n(.*?)\n```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "digits.py").write_text(study_file)
    assert outputs[0] in CliRunner().invoke(app, ["preview", "digits.py"]).stdout
    trained = []
    for steps in (12, 15):
        text = study_file.replace("max_steps=12", f"max_steps={steps}")
        names: dict[str, Any] = {"__name__": "digits"}
        exec(compile(text, "digits.py", "exec"), names)
        study = names["study"]()
        study.optimize(names["tuner"](), client=one_worker, progress=False, check=False, audit=0)
        trained.append(study.summary()["steps_executed"])
        assert study.best_value > 0.9
        study.close()
    assert trained == [66, 90]
    assert "(66 of 96)" in page
    assert outputs[1].endswith("(90 of 216)")
    sys.modules.pop("digits", None)  # examples/digits.py, of another test
    exec(compile(look, "look.py", "exec"), {})
    sys.modules.pop("digits")


@pytest.mark.process
def test_the_trainer_of_the_tutorial_trains_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (DOCS / "writing-a-trainer.md").read_text()
    (study_file,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "digits_page.py").write_text(study_file)
    digits = import_module("digits_page")
    warmed = digits.tuner().configurations[1].sequences
    assert run_alone(digits.Digits, warmed, 6).metrics[6]["accuracy"] > 0.8
    assert dt.check_resume(digits.Digits, warmed).ok
    sys.modules.pop("digits_page")


FRAGMENTS = {
    "resume-check.md": "its lines are arguments for the reader's own trainer and study",
    "retention.md": "its call of create_study is the one of examples/bucket.py",
}
"""Pages with blocks of Python that no test runs, and why."""


def test_every_page_with_code_has_its_test() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.rglob("test_*.py"))
    pages = {path.name for path in DOCS.rglob("*.md") if "```python" in path.read_text()}
    # The pages of frameworks are run by one test, which names them without the suffix.
    pages = {page for page in pages if not page.startswith("integrations-")}
    assert {page for page in pages if page not in tests} == set()
    assert set(FRAGMENTS) <= pages


def test_every_block_of_python_can_be_compiled() -> None:
    for path in DOCS.rglob("*.md"):
        for block in re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL):
            compile(block, path.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.fixture(scope="module")
def reuse(
    tmp_path_factory: pytest.TempPathFactory, two_threads: Client
) -> Iterator[tuple[ModuleType, Path]]:
    """Return the module that the page about reuse is, and the folder in which it was run."""
    folder = tmp_path_factory.mktemp("reuse")
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "reuse.md").read_text(), re.DOTALL)
    page = "".join(blocks).replace("optimize(tuner())", "optimize(tuner(), client=client)")
    (folder / "walk.py").write_text(page)
    spec = spec_from_file_location("walk", folder / "walk.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    module.client = two_threads  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setitem(sys.modules, "walk", module)
        spec.loader.exec_module(module)
        yield module, folder


def test_the_page_about_reuse_trains_once_and_takes_models_home(
    reuse: tuple[ModuleType, Path],
) -> None:
    page, folder = reuse
    assert page.monday.summary()["steps_executed"] > 0
    assert page.tuesday.summary()["steps_executed"] == 0
    best = page.monday.best_trial
    assert page.state["dasktune"]["trial"] == best.number
    assert (
        page.state["weights"].tolist() == page.monday.trial_state(best.number)["weights"].tolist()
    )
    assert page.weights.tolist() == page.monday.trial_state(2, 6)["weights"].tolist()
    done = CliRunner().invoke(app, ["ls", str(folder / "runs/walk")])
    shown = (DOCS / "reuse.md").read_text()
    assert done.stdout.splitlines()[0].split() == shown.partition("```text\n")[2].split()[:8]
    assert done.stdout.splitlines()[1].startswith("monday   3 ")


@pytest.mark.cluster
def test_the_page_about_reuse_loads_a_model(reuse: tuple[ModuleType, Path]) -> None:
    page, _ = reuse
    with local_client(1) as client:  # each of its workers imports torch
        net = page.take_home(client)
    assert torch.equal(net.weight, torch.load("net.pt", weights_only=True)["weight"])


def test_the_loop_in_the_page_tunes(shown: dict[str, Any]) -> None:
    trials = shown["study"].trials
    assert len(trials) == 32
    assert {one.state for one in trials} == {TrialState.COMPLETE, TrialState.PRUNED}
    assert shown["found"].summary()["trials"] == 32


class Falling(dt.Trainer):
    """A loss that falls with the learning rate."""

    def build(self, hp: Mapping[str, Any]) -> None:
        self.loss = 1.0

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp.get("lr", getattr(self, "lr", None))

    def train(self) -> None:
        self.loss *= 1 - self.lr / 2

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.loss}

    def state_dict(self) -> dict[str, Any]:
        return {"loss": self.loss, "lr": self.lr}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.loss, self.lr = state["loss"], state["lr"]


def test_the_run_in_the_page_runs(
    shown: dict[str, Any],
    tmp_path: Path,
    two_threads: Client,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown["tuner"] = dt.algos.ASHA(shown["space"], trials=8, max_steps=4)
    study = dt.create_study(Falling, name="falling", storage=tmp_path, metric="loss")
    shown["run"](study, two_threads)
    assert study.trials[0].params["lr"] == 0.1
    # The target of the page is reached by the first report: what runs is left where it is.
    ended = [one for one in study.trials if one.state.is_finished]
    assert len(capsys.readouterr().out.splitlines()) == len(ended)


def link_targets(page: str) -> list[str]:
    """Return the targets of a page's links without anchors; code such as `x[0](1)` has none."""
    prose = re.sub(r"```.*?```|`[^`]*`|^ {4}.*?$", "", page, flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"\]\(([^)#]+)", prose)


def test_code_is_not_read_for_links() -> None:
    page = "[`a[0](1)`](b.md) and [c](d.md#e)\n\n```python\nf[0](1)\n```\n\n    g[0](1)\n\n[h](#i)"
    assert link_targets(page) == ["b.md", "d.md"]


def test_the_files_that_the_pages_link_are_there() -> None:
    for page in DOCS.glob("*.md"):
        for target in link_targets(page.read_text()):
            assert "://" in target or (DOCS / target).exists(), f"{page.name}: {target}"


def test_paths_that_the_pages_name_exist() -> None:
    root = DOCS.parent
    pages = [*DOCS.glob("*.md"), root / "README.md", root / "benchmarks" / "README.md"]
    missing = [
        f"{page.name}: {path}"
        for page in pages
        for path in re.findall(
            r"`((?:dasktune|tests|benchmarks|examples|docs)/[\w./-]+)`", page.read_text()
        )
        if not (root / path).exists()
    ]
    assert missing == []


def test_modules_that_the_pages_import_exist() -> None:
    names = {
        name
        for page in (*DOCS.glob("*.md"), DOCS.parent / "README.md")
        for name in re.findall(r"^\s*(?:from|import) (dasktune[\w.]*)", page.read_text(), re.M)
    }
    assert len(names) > 5
    for name in sorted(names):
        import_module(name)


def test_options_page_has_the_tables_of_the_code() -> None:
    options = script("options")
    page = page_text("options.md")
    assert options.page(page) == page, "write them again: python docs/options.py"
    listed = {name for table in options.tables().values() for name in re.findall(r"`(\w+)`", table)}
    assert set(options.GUIDES) | set(options.OF_TUNERS) <= listed
