"""The examples in docs/ run."""

from __future__ import annotations

import difflib
import itertools
import re
import sys
from collections.abc import Iterator, Mapping
from functools import partial
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
from dasktune._cluster.local import local_client
from dasktune.cli import app
from dasktune.sequences import MultiStep
from dasktune.trainer.check_resume.check import check_resume
from dasktune.trainer.check_resume.new_process import run_in_new_process
from dasktune.trainer.lifecycle import run_alone
from dasktune.types import TrialState
from tests.forked import run_forked
from tests.pages import DOCS, as_module, blocks, page_text, python_blocks, script
from tests.study_folder import working_in
from tests.toy_trainers import Adding, Falling

TUNERS = python_blocks("tuners.md")


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the page from its beginning to its end; return the names it has defined."""
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("docs"))
        for block in TUNERS:
            exec(compile(block, "tuners.md", "exec"), names)
    return names


def test_the_page_of_the_format_reads_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path)
    for block in python_blocks("checkpoint-format.md"):
        exec(compile(block, "checkpoint-format.md", "exec"), names)
    assert [*names["with_zarr"]] == [*names["with_numpy"]] == ["state['weights']"]
    assert names["with_zarr"]["state['weights']"].tolist() == names["large"]["weights"].tolist()
    assert names["with_numpy"]["state['weights']"].tolist() == names["small"]["weights"].tolist()
    (block,) = (each for each in python_blocks("checkpoint-format.md") if "def content" in each)
    exec(compile(block.replace("a1/a1b2c3", "d4/d4e5f6"), "checkpoint-format.md", "exec"), names)
    assert names["with_numpy"]["state['weights']"].tolist() == names["large"]["weights"].tolist()
    assert names["document"]["state"] == {"dict": [["weights", {"tensor": 0}], ["epoch", 3]]}


def test_the_page_of_the_forest_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for block in python_blocks("forest.md"):
        exec(compile(block, "forest.md", "exec"), {})
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 4
    assert shown[0] in page_text("forest.md")


def test_the_page_of_pop_runs() -> None:
    names: dict[str, Any] = {}
    for block in python_blocks("pop.md"):
        exec(compile(block, "pop.md", "exec"), names)
    assert names["found"].time_to(0.75) is not None
    assert names["tuner"].max_steps == 40


def test_the_page_of_fingerprints_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study_file, *examples = python_blocks("fingerprints.md")
    outputs = blocks("fingerprints.md", "text")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shapes.py").write_text(study_file)
    names: dict[str, Any] = {"__name__": "page"}
    for block in examples:
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


LOOP, CARRYING, DRAWN = python_blocks("functions.md")


@pytest.mark.process
@pytest.mark.parametrize(
    ("study_file", "steps"),
    [pytest.param(LOOP, 2 * (4 + 2 + 2), id="loop"), pytest.param(DRAWN, 4 * 6, id="drawn")],
)
def test_the_functions_of_the_page_train_as_alone(
    study_file: str,
    steps: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    one_worker: Client,
) -> None:
    name = study_file.split()[1].removesuffix(".py")
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


def test_the_variables_of_the_page_are_in_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "page_of_functions.py").write_text(CARRYING)
    function = import_module("page_of_functions").early_stopping
    (state,) = run_alone(function, {"lr": 0.4}, 8, states_at=[8]).states.values()
    assert set(state["variables"]["early_stopping"]) == {"x", "best", "bad", "losses"}


@pytest.mark.process
def test_the_first_study_trains_what_its_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study_file, look = python_blocks("first-study.md")
    cost, longer = (text.strip() for text in blocks("first-study.md", "text"))
    whole = "trained 69% of the steps asked for (66 of 96)"
    assert whole in page_text("first-study.md")

    def command(*arguments: str) -> str:
        with working_in(tmp_path):
            done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
        return done.output

    (tmp_path / "digits.py").write_text(study_file)
    assert cost in command("preview", "digits.py")
    assert whole in command("run", "digits.py", "--workers", "1")
    (tmp_path / "digits.py").write_text(study_file.replace("max_steps=12", "max_steps=15"))
    assert longer in command("run", "digits.py", "--workers", "1", "--no-report")
    assert "90 trained of 216 asked for" in command("status", "runs/digits")
    command("report", "runs/digits")
    monkeypatch.syspath_prepend(tmp_path)
    with working_in(tmp_path):
        names: dict[str, Any] = {}
        exec(compile(look, "look.py", "exec"), names)
        assert names["study"].best_value > 0.9
        names["study"].close()


@pytest.mark.process
def test_the_loops_before_and_after_both_train(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = python_blocks("from-pytorch.md")
    changes = [
        line[0]
        for line in difflib.ndiff(before.splitlines()[1:], after.splitlines()[1:])
        if line[2:].strip()
    ]
    count, gone, come = len(before.splitlines()) - 1, changes.count("-"), changes.count("+")
    page = " ".join(page_text("from-pytorch.md").split())
    assert f"Of the {count} lines of the script below, {gone} go and {come} come" in page
    as_module("plain", before, tmp_path).main()
    assert float(capsys.readouterr().out.split()[-1]) > 0.9
    tuned = as_module("tuned", after, tmp_path)
    rates = [MultiStep(0.1, milestones=[drop], gamma=0.1) for drop in (4, 6, 8)]
    assert dt.preview(dt.Space(lr=rates), max_steps=12).steps_unique == 26
    assert run_alone(tuned.train, {"lr": rates[1]}, 12).metrics[12]["accuracy"] > 0.9
    for name in ("plain", "tuned"):
        sys.modules.pop(name)


@pytest.mark.process
def test_the_trainer_of_the_tutorial_trains_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (study_file,) = python_blocks("writing-a-trainer.md")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "linear.py").write_text(study_file)
    linear = import_module("linear")
    warmed = linear.tuner().configurations[1].sequences
    assert run_alone(linear.Linear, warmed, 6).metrics[6]["accuracy"] > 0.8
    execute = partial(run_in_new_process, execute=run_forked)
    assert check_resume(linear.Linear, warmed, run=execute).ok
    sys.modules.pop("linear")


class Guessing(Adding):
    """Has an accuracy."""

    def evaluate(self) -> dict[str, float]:
        return {"accuracy": 0.5}


def test_the_page_of_retention_creates_its_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = python_blocks("retention.md")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"dt": dt, "DigitsTrainer": Guessing}
    exec(compile(block, "retention.md", "exec"), names)
    assert names["study"].trials == []
    names["study"].close()


class Counting(Adding):
    """Forgets to restore a counter, which has no effect in the steps of the check."""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.count = itertools.count()

    def train(self) -> None:
        super().train()
        next(self.count)


@pytest.mark.process
def test_the_page_of_the_resume_check_prints_its_report(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    two_threads: Client,
) -> None:
    harmless, check, recorded, again = python_blocks("resume-check.md")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"dt": dt, "MultiStep": MultiStep}
    exec(compile(harmless, "resume-check.md", "exec"), names)
    assert names["MyTrainer"].harmless_differences[0] == "trainer.started"
    names["MyTrainer"] = Counting
    exec(compile(check, "resume-check.md", "exec"), names)
    assert capsys.readouterr().out == blocks("resume-check.md", "text")[0]
    names |= {"MyTrainer": Adding, "hp": {"lr": 0.1}, "config": {}}
    exec(compile(recorded.replace("s3://bucket", "file:bucket"), "resume-check.md", "exec"), names)
    study = dt.create_study(Adding, name="adding", metric="loss", database="studies.db")
    names |= {"study": study, "tuner": dt.algos.Grid(dt.Space(lr=[0.1, 0.2]), max_steps=2)}
    again = again.replace("optimize(tuner)", "optimize(tuner, client=client)")
    exec(compile(again, "resume-check.md", "exec"), {**names, "client": two_threads})
    assert [trial.value for trial in study.trials] == [0.2, 0.4]
    study.close()


def test_the_page_of_trainers_shares_a_step_with_one_device() -> None:
    (block,) = python_blocks("trainers.md")
    names: dict[str, Any] = {"dt": dt, "nn": torch.nn}
    exec(compile(block, "trainers.md", "exec"), names)

    class Small(names["Net"]):  # type: ignore[misc]
        def build(self, hp: Mapping[str, Any]) -> None:
            self.model = torch.nn.Linear(2, 2)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
            self.loader = dt.ResumableLoader((torch.eye(2), torch.tensor([0, 1])), 2, seed=0)

        def evaluate(self) -> dict[str, float]:
            logits = self.model(torch.eye(2))
            return {"loss": torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1])).item()}

    metrics = run_alone(Small, {"width": 2}, 4).metrics
    assert metrics[4]["loss"] < metrics[1]["loss"]


@pytest.fixture(scope="module")
def reuse(
    tmp_path_factory: pytest.TempPathFactory, two_threads: Client
) -> Iterator[tuple[ModuleType, Path]]:
    """Return the module that the page about reuse is, and the folder in which it was run."""
    folder = tmp_path_factory.mktemp("reuse")
    page = "".join(python_blocks("reuse.md")).replace(
        "optimize(tuner())", "optimize(tuner(), client=client)"
    )
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
