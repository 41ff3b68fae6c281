"""Calls as Optuna has them, and other slips of new users: each names what to write."""

from __future__ import annotations

import difflib
import logging
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from distributed import Client
from typer.testing import CliRunner

import dasktune as dt
import dasktune.sequences
from dasktune.cli import app
from dasktune.errors import ConfigurationError, StorageError
from tests.forked import run_forked
from tests.pages import blocks, python_blocks
from tests.study.test_deletion import Walking
from tests.study_folder import working_in

SPACE = dt.Space(lr=dt.Float(0.1, 1))


def objective(trial: Any) -> float:
    return float(trial.suggest_float("lr", 0, 1))


def create(folder: Path, **arguments: Any) -> dt.Study:
    given = {"name": "net", "metric": "loss", "direction": "minimize", "storage": folder / "runs"}
    return dt.create_study(Walking, **{**given, **arguments})


def message(call: Callable[[], object]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        call()
    return str(caught.value)


def test_a_study_without_a_name_is_refused_with_an_example() -> None:
    refused = message(lambda: dt.create_study(direction="maximize"))  # type: ignore[call-arg]
    assert refused.startswith(
        "create_study must be given trainer and name and metric, such as "
        'create_study(train, name="digits", metric="accuracy", ...) (docs/from-optuna.md'
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"study_name": "net"}, "study_name is Optuna's; write name='net'"),
        ({"sampler": None}, "sampler=sampler))"),
        ({"directions": ["minimize"]}, "metric=..., a list of as many names"),
        ({"storage": "sqlite:///a.db"}, "write database='sqlite:///a.db' and storage='runs/...'"),
        ({"nmae": "net"}, "unknown option of create_study 'nmae'; known: audit, budget, "),
    ],
)
def test_a_study_as_in_optuna_is_explained(
    tmp_path: Path, arguments: dict[str, Any], words: str
) -> None:
    assert words in message(lambda: create(tmp_path, **arguments))


@pytest.mark.parametrize(
    ("tuner", "arguments", "words"),
    [
        (objective, {}, "got the function objective; the function that trains belongs to"),
        (objective, {"n_trials": 20}, "dasktune.algos.ASHA(space, trials=20, max_steps=...)"),
        (SPACE, {"timeout": 60}, "write limits=dasktune.Limits(seconds=60)"),
        (SPACE, {"n_jobs": 2}, "write workers=2"),
        (dt.algos.ASHA, {}, "got the class ASHA; make one: ASHA(space, ...)"),
        (SPACE, {}, "write dasktune.algos.Random(space, trials=20, max_steps=...)"),
        (optuna.samplers.TPESampler(), {}, "max_steps=..., sampler=...)"),
        (optuna.pruners.MedianPruner(), {}, "dasktune.algos.ASHA and the other tuners prune"),
        (dt.algos.Grid(dt.Space(lr=[1]), max_steps=1), {"callbacks": print}, "must be a list of"),
    ],
)
def test_a_run_as_in_optuna_is_explained(
    tmp_path: Path, tuner: Any, arguments: dict[str, Any], words: str
) -> None:
    study = create(tmp_path)
    assert words in message(lambda: study.optimize(tuner, **arguments))
    study.close()


def test_optuna_distributions_become_domains() -> None:
    space = dt.Space(
        lr=optuna.distributions.FloatDistribution(1e-4, 1.0, log=True),
        width=optuna.distributions.IntDistribution(2, 8, step=2),
        kind=optuna.distributions.CategoricalDistribution(["a", "b"]),
    )
    own = dt.Space(lr=dt.Float(1e-4, 1.0, log=True), width=dt.Int(2, 8, step=2), kind=["a", "b"])
    assert space.to_json() == own.to_json()


def test_ranges_in_other_forms_are_refused() -> None:
    assert "write dasktune.Float(0.1, 1.0) or [0.1, 1.0]" in message(
        lambda: dt.Space(lr=(0.1, 1.0))
    )
    wandb = {"min": 0.1, "max": 1.0}
    assert "a range is dasktune.Float(low, high)" in message(lambda: dt.Space(lr=wandb))


def test_unknown_names_are_refused_once_trials_are_known(
    tmp_path: Path, two_threads: Client, caplog: pytest.LogCaptureFixture
) -> None:
    study = create(tmp_path)
    study.enqueue_trial({"lr": 0.5})
    grid = dt.algos.Grid(dt.Space(lr=[0.1]), max_steps=1)
    with caplog.at_level(logging.WARNING, logger="dasktune"):
        study.optimize(grid, client=two_threads, check=False, last_line=False)
    assert "Grid draws no configurations, so 1 queued trials wait on" in caplog.text
    wrong = message(lambda: study.evaluate({"lrr": 0.1}, steps=1, client=two_threads))
    assert wrong == "unknown hyper-parameter 'lrr'; known: lr; did you mean 'lr'?"
    random = dt.algos.Random(SPACE, trials=1, max_steps=1)
    study.optimize(random, client=two_threads, check=False, last_line=False)
    assert study.trials[-1].params == {"lr": 0.5}
    assert message(lambda: study.enqueue_trial({"rate": 1.0})) == (
        "unknown coordinate 'rate'; known: lr"
    )
    study.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_trials": 9}, "unknown option of ASHA 'n_trials'; known: brackets, eta, max_steps"),
        ({"n_trials": 9}, "n_trials is Optuna's: write trials=..."),
        ({"trials": 9, "timeout": 3}, "limits=dasktune.Limits(seconds=...)"),
        ({"trials": 9, "step": 3}, "unknown option of ASHA 'step'; known: "),
    ],
)
def test_an_unknown_option_of_a_tuner_is_refused(options: dict[str, int], words: str) -> None:
    assert words in message(lambda: dt.algos.ASHA(SPACE, max_steps=3, **options))  # type: ignore[arg-type]


def test_a_queued_trial_that_waits_is_announced(
    tmp_path: Path, two_threads: Client, caplog: pytest.LogCaptureFixture
) -> None:
    study = create(tmp_path)
    options: dict[str, Any] = {"client": two_threads, "check": False, "last_line": False}
    study.optimize(dt.algos.Random(SPACE, trials=1, max_steps=1), **options)
    assert "params must be values by coordinate, got 3" in message(
        lambda: study.enqueue_trial(3)  # type: ignore[arg-type]
    )
    study.enqueue_trial({"lr": 0.5})
    with caplog.at_level(logging.WARNING, logger="dasktune"):
        study.optimize(dt.algos.Random(SPACE, trials=2, max_steps=1), **options)
    assert "this tuner goes on, and takes no queued trials; 1 wait for a new one" in caplog.text
    study.close()


def test_a_url_without_a_bucket_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="must name a bucket, such as s3://bucket/folder"):
        dt.CheckpointStore("s3://")


def test_a_missing_library_is_named_with_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    def missing(*_: object, **__: object) -> object:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "url_to_fs", missing)
    with pytest.raises(StorageError, match=r"Install s3fs .*pip install 'dasktune\[s3\]'"):
        dt.CheckpointStore("s3://bucket/folder")


def test_the_best_model_is_the_trainer_with_its_state(tmp_path: Path, two_threads: Client) -> None:
    study = create(tmp_path)
    grid = dt.algos.Grid(dt.Space(lr=[0.1, 0.5]), max_steps=4)
    study.optimize(grid, client=two_threads, check=False, last_line=False)
    model = study.best_model()
    assert isinstance(model, Walking)
    assert model.evaluate() == {"loss": study.best_value}
    best = study.best_trial
    assert best.intermediate_values == {step: best.metrics[step]["loss"] for step in range(1, 5)}
    study.close()


GUARDED = """
import sys
from dasktune._study.main_guard import guard_problem


def look():
    print(guard_problem())


{}
    look()
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("guard", "words"),
    [
        ('if __name__ == "__main__":', "None"),
        ('if "__main__" == __name__ and sys.argv:', "None"),
        ("for _ in range(1):", "line 11 must stand below a main guard"),
    ],
)
def test_a_script_needs_a_main_guard(tmp_path: Path, guard: str, words: str) -> None:
    script = tmp_path / "tune.py"
    script.write_text(GUARDED.format(guard))
    done = run_forked([sys.executable, str(script)], cwd=tmp_path, text=True, timeout=60)
    assert words in done.stdout, done.stderr
    assert len(done.stdout.splitlines()) <= 5


PAGE = Path(__file__).parents[2] / "docs" / "from-optuna.md"


SCRIPTS = WITH_OPTUNA, WITH_DASKTUNE, MERGING, AS_IT_IS = python_blocks("from-optuna.md")


def named(*texts: str) -> dict[str, str]:
    """Return scripts by the names in their first lines."""
    pairs = [text.partition("\n")[::2] for text in texts]
    return {name.removeprefix("# ").removesuffix(".py"): text for name, text in pairs}


def scripts() -> dict[str, str]:
    """Return the scripts before and after, by name."""
    return named(WITH_OPTUNA, WITH_DASKTUNE)


def test_a_port_from_optuna_changes_at_most_ten_lines() -> None:
    before, after = (text.splitlines() for text in scripts().values())
    changes = [line[0] for line in difflib.ndiff(before, after) if line[2:].strip()]
    assert (len(before), changes.count("-"), changes.count("+")) == (52, 8, 8)
    assert "of the 52 lines of the script below, 8 go and 8 come" in PAGE.read_text().lower()


def test_both_scripts_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_worker: Client
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in scripts().items():
        (tmp_path / f"{name}.py").write_text(text)
    with_optuna, with_dasktune = map(import_module, scripts())
    sampler = optuna.samplers.RandomSampler(seed=0)
    theirs = optuna.create_study(direction="maximize", sampler=sampler)
    theirs.optimize(with_optuna.objective, n_trials=1)
    ours = dt.create_study(
        with_dasktune.objective, name="digits", metric="accuracy", direction="maximize"
    )
    tuner = dt.algos.ASHA(with_dasktune.objective, trials=3, max_steps=3, seed=0)
    ours.optimize(tuner, client=one_worker, progress=False, check=False, last_line=False)
    assert theirs.best_value > 0.5 < ours.best_value
    assert set(ours.best_params) == set(theirs.best_params)
    ours.close()
    for name in scripts():
        sys.modules.pop(name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the scripts of the page; they search little."""
    for name, text in named(*SCRIPTS).items():
        (tmp_path / f"{name}.py").write_text(text.replace("trials=8", "trials=2"))
    return tmp_path


def run_script(folder: Path, name: str) -> tuple[str, str]:
    """Run a script by its name; return its standard output and standard error."""
    script = [sys.executable, str(folder / f"{name}.py")]
    done = run_forked(script, cwd=folder, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.process
@pytest.mark.cluster
@pytest.mark.parametrize("name", ["with_dasktune", "as_it_is"])
def test_the_same_command_goes_on_with_a_script(folder: Path, name: str) -> None:
    first, _ = run_script(folder, name)
    second, _ = run_script(folder, name)
    assert first == second
    assert float(first.split()[0]) > 0.5


@pytest.mark.process
@pytest.mark.cluster
def test_the_merging_script_runs_by_python_and_dasktune(folder: Path) -> None:
    _, errors = run_script(folder, "merging")
    (shown,) = blocks("from-optuna.md", "text")
    assert shown.strip() in errors
    with working_in(folder):
        listed = CliRunner().invoke(app, ["run", "merging.py", "--no-report"])
        assert shown.strip().removeprefix("merging: ") in listed.stdout
        forecast = CliRunner().invoke(app, ["preview", "merging.py"])
        assert "6 trials ask for 54 steps; 34 are unique (63%)" in forecast.stdout


def test_sequences_of_the_page_give_the_rates_of_torch() -> None:
    rows = re.findall(r"^\| `(\w+\(optimizer, .*?\))` \| `(.*?)` \|$", PAGE.read_text(), re.M)
    assert len(rows) == 8
    for scheduler, sequence in rows:
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
        made = eval(scheduler, {**vars(torch.optim.lr_scheduler), "optimizer": optimizer})
        same = eval(sequence, {**vars(dasktune.sequences), "lr": 0.1})
        for step in range(16):
            assert same(step) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12), sequence
            optimizer.step()
            made.step()


@pytest.mark.process
def test_the_best_model_of_a_function_has_what_it_tracks(
    folder: Path, monkeypatch: pytest.MonkeyPatch, one_worker: Client
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    page = import_module("with_dasktune")
    study = dt.create_study(
        page.objective,
        name="best",
        metric="accuracy",
        direction="maximize",
        storage=folder / "best",
    )
    tuner = dt.algos.Random(page.objective, trials=1, max_steps=1)
    study.optimize(tuner, client=one_worker, progress=False, check=False, last_line=False)
    model = study.best_model().run.tracked["model"]
    _, _, x, y = page.load()
    assert page.accuracy(model, x, y) == study.best_value
    study.close()
    sys.modules.pop("with_dasktune")
