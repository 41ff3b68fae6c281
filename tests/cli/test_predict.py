"""``dasktune predict`` says what trials of a real study will come to."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from distributed import Client
from typer.testing import CliRunner, Result

import dasktune as dt
from dasktune._results.prediction import MOST_CHECKS, TrialPrediction
from dasktune.algos.curves import PREDICTORS, Curve, Persistence
from dasktune.cli import app
from dasktune.cli.predict import in_words, of_target
from dasktune.cli.study_file import load
from dasktune.sequences import Constant, Piecewise
from dasktune.types import Direction, TrialState
from tests.study_folder import working_in
from tests.toy_trainers import Counting

from .conftest import STUDY_FILE

TUNER = """
def tuner():
    lrs = [Constant(0.02), Piecewise([0.02, 0.05], [2]), Constant(0.01), Constant(0.03)]
    return dt.algos.ASHA(dt.Space(lr=dt.Choice(lrs)), trials=17, min_steps=3, max_steps=24, eta=2)
"""


@pytest.fixture(scope="module")
def home(
    tmp_path_factory: pytest.TempPathFactory, two_threads: Client
) -> Iterator[tuple[Path, list[dt.Trial]]]:
    """Return a folder with a study that was run, and its trials."""
    folder = tmp_path_factory.mktemp("predict")
    with working_in(folder):
        Path("counting.py").write_text(STUDY_FILE.partition("def tuner(")[0] + TUNER)
        loaded = load(Path("counting.py"), ())
        study = loaded.study()
        study.optimize(loaded.tuner(), client=two_threads, progress=False, last_line=False)
        trials = study.trials
        study.close()
        yield folder, trials


@pytest.fixture
def pruned(home: tuple[Path, list[dt.Trial]], monkeypatch: pytest.MonkeyPatch) -> dt.Trial:
    """Return a trial that did not come to its end, nor one like it; work in its folder."""
    monkeypatch.chdir(home[0])
    ended = [one.sequences for one in home[1] if one.state is TrialState.COMPLETE]
    return next(one for one in home[1] if one.sequences not in ended)


def command(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["predict", *arguments])


@pytest.mark.parametrize("target", ["counting.py", "runs/counting", "runs/counting/dasktune.db"])
def test_a_fan_is_printed_of_any_study(pruned: dt.Trial, target: str) -> None:
    before = sorted(Path().rglob("*"))
    done = command(target, "--trial", str(pruned.number))
    assert done.exit_code == 0, done.stderr
    first, header, *rows, checks = done.stdout.splitlines()
    assert first.startswith(f"trial {pruned.number}: loss ")
    assert first.endswith("of 24 (minimize)")
    assert header.split() == ["step", "median", "50%", "80%", "95%"]
    assert rows[-1].split()[0] == "24"
    held = re.fullmatch(r"the 80% band held in (\d+) of the last (\d+) predictions .*", checks)
    assert held is not None
    assert 0 <= int(held[1]) <= int(held[2]) <= MOST_CHECKS
    assert sorted(Path().rglob("*")) == before, "nothing is made"


def test_a_target_has_a_chance_and_a_time(pruned: dt.Trial) -> None:
    at = ["runs/counting", "--trial", str(pruned.number)]
    value = json.loads(command(*at, "--json").stdout)["value"]
    done = command(*at, "--target", str(value - 0.01))
    assert done.stdout.splitlines()[1].endswith(f"P(<= {value - 0.01:.6g})")
    last = done.stdout.splitlines()[-2]
    words = r"with probability [01]\.\d\d, expected after \d+ more steps? \(ERT .+\)"
    assert re.fullmatch(rf"reaches {value - 0.01:.6g} {words}", last)
    done = command(*at, "--target", "1")
    assert done.stdout.splitlines()[-2] == "reached 1 already, at step 1"
    done = command(*at, "--target", "-1", "--low", "0")
    assert done.stdout.splitlines()[-2] == "cannot reach -1 by step 24"


def test_predict_step_beyond_the_end_of_the_trial_is_answered(pruned: dt.Trial) -> None:
    done = command("runs/counting", "--trial", str(pruned.number), "--step", "100")
    assert re.fullmatch(r"trial \d+: loss \S+ at step \d+ of 24 \(.*", done.stdout.splitlines()[0])


def test_the_predictors_in_the_help_are_those_that_there_are() -> None:
    words = command("--help").stdout
    assert all(name in words for name in PREDICTORS)


def test_programs_read_json_and_the_fan_is_drawn(pruned: dt.Trial, tmp_path: Path) -> None:
    plot = tmp_path / "fan.svg"
    options = ["--step", "30", "--step", "20", "--step", "30"]
    options += ["--target", "0.01", "--plot", str(plot)]
    options += ["--low", "0", "--predictor", "Persistence", "--json"]
    done = command("counting.py", "--trial", str(pruned.number), *options)
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["steps"], found["max_steps"], found["target"]) == ([20, 30], 24, 0.01)
    assert found["intervals"].keys() == {"0.5", "0.8", "0.95"}
    assert all(low >= 0 for pairs in found["intervals"].values() for low, _ in pairs)
    assert 0 <= found["chance"] <= 1
    assert "target 0.01" in plot.read_text()


def test_others_that_begin_alike_are_known(home: tuple[Path, list[dt.Trial]]) -> None:
    """The plan of a study that is only read is the one that was run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home[0])
        study = load(Path("counting.py"), ()).study()
        one = next(one for one in home[1] if one.sequences["lr"] == Piecewise([0.02, 0.05], [2]))
        assert any(other.sequences["lr"] == Constant(0.02) for other in home[1])
        found = study.predict(one.number, steps=40)
        assert [branch.at for branch in found.curve.siblings] == [2, 2]
        assert found.curve.rates == ((0, 0.02), (2, 0.05))
        assert found.step_seconds is not None
        assert found.step_seconds > 0
        study.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trial", "99"], "trial must be one of 0 to 16, got 99"),
        (["--trial", "0", "--low", "1", "--high", "0"], "bounds must be (lowest, highest)"),
        (["--trial", "0", "--low", "1"], "bounds must hold all values of loss, 1 to inf, got 0."),
        (["--trial", "0", "--predictor", "Oracle"], "predictor must be one of CurveEnsemble, "),
        (["--trial", "0", "--rate", "eta", "--step", "40"], "unknown hyper-parameter 'eta'"),
        (["--trial", "0", "--step", "1"], "must be after the last measured one"),
        (
            ["--trial", "0", "--step", "40", "--target", "nan"],
            "must be a finite number, got nan",
        ),
        (["--trial", "0", "--study", "other"], "unknown study 'other'; known: counting"),
        ([], "Missing option '--trial'"),
    ],
)
def test_predict_refuses_wrong_arguments_without_traceback(
    pruned: dt.Trial, arguments: list[str], message: str
) -> None:
    done = command("runs/counting", *arguments)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_predict_refuses_complete_trials_and_empty_folders(
    home: tuple[Path, list[dt.Trial]], pruned: dt.Trial, tmp_path: Path
) -> None:
    ended = next(one for one in home[1] if one.state is TrialState.COMPLETE)
    done = command("counting.py", "--trial", str(ended.number))
    assert done.exit_code == 2
    assert f"trial {ended.number} is at its end, step 24, with loss " in done.stderr
    done = command(str(tmp_path), "--trial", "0")
    assert done.exit_code == 2
    assert "has no database; say where it is: --database" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_predict_uses_the_target_of_the_trials_tuner_by_default(
    two_threads: Client, tmp_path: Path
) -> None:
    study = dt.create_study(
        Counting, name="climb", storage=tmp_path, metric="loss", direction="maximize"
    )
    space = dt.Space(side=dt.Choice([1, 2]))
    for tuner in (
        dt.algos.Grid(dt.Space(side=[3]), max_steps=2),
        dt.algos.POP(space, target=40.5, trials=1, max_steps=6, predictor="Persistence"),
    ):
        study.optimize(tuner, client=two_threads, progress=False, last_line=False)
    study.close()
    options = ["--step", "9", "--json"]
    plain, pop = (
        json.loads(command(str(tmp_path), "--trial", n, *options).stdout) for n in ("0", "1")
    )
    assert "target" not in plain
    assert pop["target"] == 40.5
    given = command(str(tmp_path), "--trial", "1", *options, "--target", "3")
    assert json.loads(given.stdout)["target"] == 3


@pytest.mark.parametrize("name", ["missing/fan.svg", "folder.svg", "fan.png"])
def test_predict_refuses_a_bad_plot_path_before_it_reads_a_study(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.svg").mkdir()
    done = command("no/such/study", "--trial", "0", "--plot", str(tmp_path / name))
    assert done.exit_code == 2, done.output
    assert "--plot must be an .svg in a folder that exists" in " ".join(done.stderr.split())
    assert "study" not in done.stderr


def test_a_metrics_name_obeys_no_terminal() -> None:
    assert "\x1b" not in in_words(replace(predicted(), metric="\x1b[31m"), 0.7)


def test_of_target_gives_expected_steps_only_if_likely_enough() -> None:
    found = predicted()
    (_, likely), (_, unlikely) = found.interval(0.8)[-1], found.interval(0.95)[-1]
    assert found.chance(unlikely) < 0.05
    assert "with probability 0.10, expected after 1 more step (ERT" in of_target(found, likely)
    assert re.fullmatch(r"reaches [\d.]+ with probability 0\.0\d", of_target(found, unlikely))


def predicted() -> TrialPrediction:
    """Return the predicted of a trial with two scores."""
    curve = Curve(steps=(1, 2), scores=(0.4, 0.5), max_steps=3)
    return TrialPrediction(
        trial=0,
        metric="accuracy",
        direction=Direction.MAXIMIZE,
        curve=curve,
        prediction=Persistence().predict(curve, (3,)),
        step_seconds=1.0,
    )
