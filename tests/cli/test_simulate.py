"""`dasktune simulate`: tuners side by side on a trace."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from dasktune.cli import app
from dasktune.simulate import Trace
from dasktune.traces.timing import Overheads

CONFIGURATIONS, STEPS = 12, 9


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Return curves that fall from 1 towards a level of their own, the best to 0.1."""
    levels = np.linspace(0.1, 0.9, CONFIGURATIONS)[:, None]
    loss = levels + (1 - levels) / np.arange(1, STEPS + 1)
    curves = {"loss": loss, "accuracy": 1 - loss}
    return Trace.from_arrays(curves).save(tmp_path / "curves.npz")


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["simulate", *map(str, arguments)])


def document(*arguments: object) -> dict[str, object]:
    found = command(*arguments, "--json")
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def test_figures_of_each_tuner_as_json(trace: Path) -> None:
    found = document(
        trace, "--metric", "loss", "--tuner", "grid", "--tuner", "Random", "--target", 0.3,
        "--workers", 3, "--orders", 4, "--trials", 6,
    )  # fmt: skip
    assert found["target"] == 0.3
    assert (found["workers"], found["orders"], found["direction"]) == ([3], 4, "minimize")
    grid, random = found["tuners"]
    assert grid["workers"] == 3
    # All twelve trials of 9 steps on 3 workers, in whatever order.
    for name, value in {"best": 0.2, "seconds": 36, "steps": 108, "completed": 12}.items():
        assert list(grid[name].values()) == pytest.approx([value] * 6)
    assert grid["reached"] == 4
    assert grid["seconds_to"]["low"] < grid["seconds_to"]["high"], "some orders are lucky"
    assert random["completed"]["high"] == 6
    assert set(random["steps"].values()) == {54}, "none is drawn twice"


def test_orders_are_the_same_for_all_tuners(trace: Path) -> None:
    arguments = (trace, "--metric", "loss", "--target", 0.3, "--orders", 6, "--workers", 2)
    found = document(*arguments, "--tuner", "grid", "--tuner", "random")["tuners"]
    assert found[0]["seconds_to"] == found[1]["seconds_to"]
    assert found[1]["times_first"] == {"mean": 1.0, "median": 1.0}
    assert found[0]["seconds_to"]["low"] < found[0]["seconds_to"]["high"]
    (later,) = document(*arguments, "--tuner", "grid", "--seed", 6)["tuners"]
    assert later["seconds_to"] != found[0]["seconds_to"]


def test_several_numbers_of_workers_are_compared(trace: Path) -> None:
    arguments = (trace, "--metric", "loss", "--target", 0.3, "--tuner", "grid", "--tuner",
                 "asha:eta=3", "--workers", 2, "--workers", 4, "--workers", 2)  # fmt: skip
    found = document(*arguments)
    assert found["workers"] == [2, 4]
    assert [one["workers"] for one in found["tuners"]] == [2, 2, 4, 4]
    for name in ("mean", "median", "low", "high"):
        slow, fast = (found["tuners"][at]["seconds_to"][name] for at in (0, 2))
        assert fast <= slow
    grid, asha = found["tuners"][2:]
    ratio = asha["seconds_to"]["mean"] / grid["seconds_to"]["mean"]
    assert asha["times_first"]["mean"] == pytest.approx(ratio)
    assert grid["times_first"] == {"mean": 1.0, "median": 1.0}
    shown = command(*arguments).stdout.splitlines()
    assert shown[0] == "seconds to loss 0.3 on 2 workers, 5 orders:"
    header = "tuner reached mean median quartiles times the first (mean / median) steps to it"
    assert " ".join(shown[1].split()).startswith(header)
    assert shown[5] == "seconds to loss 0.3 on 4 workers, 5 orders:"
    assert shown[8].startswith("asha:eta=3")


def test_a_target_that_is_not_reached_is_never(trace: Path) -> None:
    arguments = (trace, "--metric", "accuracy", "--direction", "maximize", "--tuner", "grid")
    (found,) = document(*arguments, "--target", 0.99)["tuners"]
    assert found["reached"] == 0
    assert set(found["seconds_to"].values()) == {None}
    assert found["times_first"] == {"mean": None, "median": None}
    shown = command(*arguments, "--target", 0.99).stdout.splitlines()
    assert shown[2].split()[:6] == ["grid", "0", "of", "5", "never", "never"]


def test_simulate_without_a_target_shows_the_best_value(trace: Path) -> None:
    found = command(trace, "--metric", "loss", "--tuner", "grid", "--orders", 2)
    assert found.exit_code == 0
    header, row = found.stdout.splitlines()
    assert header.split() == ["tuner", "best", "loss", "seconds", "steps"]
    assert row.split() == ["grid", "0.2", "18", "108"]


def test_the_same_budget_for_all_and_mishaps_cost_time(trace: Path) -> None:
    arguments = (trace, "--metric", "loss", "--tuner", "random", "--tuner", "asha:eta=3")
    limited = document(*arguments, "--steps", 40, "--workers", 2)["tuners"]
    assert [one["steps"]["median"] for one in limited] == pytest.approx([40, 40], abs=1)
    plain, slow = (
        document(*arguments, *more)["tuners"] for more in ((), ("--straggling", 1, "--drop", 0.01))
    )
    assert all(
        later["seconds"]["median"] > first["seconds"]["median"]
        for first, later in zip(plain, slow, strict=True)
    )


def test_arguments_of_a_tuner_are_given_with_its_name(trace: Path) -> None:
    arguments = (trace, "--metric", "loss", "--orders", 3, "--trials", 12)
    two, four = document(
        *arguments,
        *("--tuner", "asha:eta=2:min_steps=3:brackets=[0]"),
        *("--tuner", "asha:eta=4:min_steps=3:brackets=[0]"),
    )["tuners"]
    assert two["steps"]["median"] > four["steps"]["median"]
    (short,) = document(*arguments, "--tuner", "grid", "--max-steps", 3)["tuners"]
    assert short["steps"]["median"] == 36


def test_tuner_names_take_dashes_and_arguments_take_none(trace: Path) -> None:
    found = document(
        *(trace, "--metric", "loss", "--orders", 1, "--trials", 4, "--target", 0.3),
        *("--tuner", "async-hyperband", "--tuner", "pop:bounds=[0,None]:predictor=Persistence"),
        *("--tuner", "freeze-thaw:budget=60"),
    )
    assert len(found["tuners"]) == 3
    assert "AsyncHyperband" in command(trace, "--metric", "loss", "--tuner", "hyper-band-2").output


def test_simulate_plot_has_a_line_per_tuner_and_is_reproducible(
    trace: Path, tmp_path: Path
) -> None:
    arguments = [trace, "--metric", "loss", "--tuner", "random", "--tuner", "sha:eta=3"]
    pictures = [tmp_path / name for name in ("first.svg", "second.svg")]
    for picture in pictures:
        assert command(*arguments, "--plot", picture).exit_code == 0
    first, second = (picture.read_text() for picture in pictures)
    assert first == second
    marks = list(ET.fromstring(first).iter())
    looks = [mark.get("class") for mark in marks if mark.tag.endswith("path")]
    # Each line once in the picture and once in the legend; five runs of both tuners behind.
    assert (looks.count("curve l1"), looks.count("curve l2"), looks.count("faint")) == (2, 2, 11)
    words = {mark.text for mark in marks}
    assert {"best loss", "virtual seconds", "random", "sha:eta=3", "each order"} <= words


def test_simulate_plot_of_a_target_shows_times_and_worker_counts(
    trace: Path, tmp_path: Path
) -> None:
    arguments = [trace, "--metric", "loss", "--tuner", "random", "--tuner", "grid", "--target", 0.3]
    assert command(*arguments, "--plot", tmp_path / "a.svg", "--orders", 3).exit_code == 0
    one = ET.parse(tmp_path / "a.svg").getroot()
    words = {mark.text for mark in one.iter()}
    assert {"time to loss 0.3", "random", "grid", "3 of 3", "8 workers"} <= words
    more = ["--workers", 1, "--workers", 4]
    assert command(*arguments, "--plot", tmp_path / "b.svg", *more).exit_code == 0
    several = ET.parse(tmp_path / "b.svg").getroot()
    assert {"1 worker", "4 workers"} <= {mark.text for mark in several.iter()}
    boxes = [[mark.get("fill-opacity") for mark in root.iter()] for root in (one, several)]
    assert [looks.count("0.45") for looks in boxes] == [2, 4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tuner", "astra"], "unknown tuner 'astra'; known: ASHA, "),
        (["--tuner", "asha:width=3"], "asha:width=3: unknown argument 'width'; known: "),
        (["--tuner", "asha:eta"], "must be given as key=value, got"),
        (["--tuner", "asha:eta=1"], "eta must be >= 2, got 1"),
        (["--tuner", "grid", "--tuner", "grid"], "a tuner may come only once, got 'grid' again"),
        (["--tuner", "grid", "--max-steps", "10"], "max_steps must be <= 9, the trace's steps"),
        (["--tuner", "grid", "--metric", "acc"], "unknown metric 'acc'; known: accuracy, loss"),
        (["--tuner", "grid", "--direction", "up"], "direction must be 'maximize' or 'minimize'"),
        (["--tuner", "grid", "--drop", "1"], "drop must be a probability >= 0 and < 1, got 1"),
        (["--tuner", "pbt:population=5:every=2"], "configuration must not change on recorded"),
        (["--plot", "x.svg", *(["--tuner", "grid"] * 6)], "--plot must have at most 5 tuners"),
        (
            ["--plot", "x.svg", "--tuner", "grid", "--workers", "1", "--workers", "2"],
            "--plot of several --workers must have a --target",
        ),
        (["--tuner", "random", "--trials", "13"], "trials must be <= 12, the size of the grid"),
    ],
)
def test_simulate_refuses_wrong_arguments_without_traceback(
    trace: Path, arguments: list[str], message: str
) -> None:
    found = command(trace, "--metric", "loss", *arguments)
    assert found.exit_code == 2
    assert message in found.stderr
    assert "Traceback" not in found.stderr


def test_simulate_reports_all_unknown_tuners_together(trace: Path) -> None:
    found = command(trace, "--metric", "loss", "--tuner", "a", "--tuner", "b")
    assert found.exit_code == 2
    assert found.stderr.count("unknown tuner") == 2


def test_a_metric_must_be_named_where_there_are_several(trace: Path, tmp_path: Path) -> None:
    found = command(trace, "--tuner", "grid")
    assert found.exit_code == 2
    assert "metric must be one of accuracy, loss" in found.stderr
    alone = Trace.from_arrays({"reward": [[1.0, 2.0]]}).save(tmp_path / "alone.npz")
    assert document(alone, "--tuner", "grid")["metric"] == "reward"


def test_a_file_that_is_no_trace_is_an_exit_code(tmp_path: Path) -> None:
    missing = command(tmp_path / "none.npz", "--tuner", "grid")
    assert (missing.exit_code, "none.npz" in missing.stderr) == (2, True)
    (tmp_path / "broken.npz").write_text("not a zip")
    broken = command(tmp_path / "broken.npz", "--tuner", "grid")
    assert (broken.exit_code, "cannot be read as a trace" in broken.stderr) == (1, True)


def test_simulate_shows_the_seconds_before_the_first_step(trace: Path, tmp_path: Path) -> None:
    recorded = Trace.load(trace)
    overheads = Overheads(begin=3.0, build=2.0, handover=0.5, save=0.25)
    slow = replace(recorded, overheads=overheads).save(tmp_path / "slow.zarr")
    arguments = ("--metric", "loss", "--tuner", "grid", "--orders", 2, "--trials", 4)
    told = "5.5 s of each time pass before the first step; with --no-overheads only steps take time"
    assert command(slow, *arguments, "--target", 0.3).stdout.splitlines()[-1] == told
    assert command(slow, *arguments).stdout.splitlines()[-1] == told, "of 5.5 + 2 * 9 seconds"
    never = command(slow, *arguments, "--target", 0.01).stdout
    assert "first step" not in never
    quick = replace(recorded, overheads=replace(overheads, begin=0.0, build=0.0))
    quick.save(tmp_path / "quick.zarr")
    assert "first step" not in command(tmp_path / "quick.zarr", *arguments).stdout
    assert "first step" not in command(slow, *arguments, "--no-overheads").stdout
    plain, free = (document(*given, *arguments) for given in ((trace,), (slow, "--no-overheads")))
    assert free["tuners"] == plain["tuners"]
    with_all = document(slow, *arguments)
    assert with_all["overheads"]["begin"] == 3.0
    assert with_all["tuners"][0]["seconds"]["low"] > plain["tuners"][0]["seconds"]["high"] + 5.5
    assert set(free["overheads"].values()) == {0.0}


def test_a_target_is_also_that_of_a_tuner_that_has_none(trace: Path) -> None:
    arguments = (trace, "--metric", "loss", "--target", 0.3, "--orders", 1)
    given, same, own = document(
        *arguments, "--tuner", "pop:bounds=[0,1]", "--tuner", "pop:bounds=[0,1]:target=0.3",
        "--tuner", "pop:bounds=[0,1]:target=0.6",
    )["tuners"]  # fmt: skip
    assert given["steps"] == same["steps"]
    assert own["steps"]["high"] < given["steps"]["low"]


def test_promoted_trials_may_train_again_from_scratch(trace: Path) -> None:
    arguments = (
        trace, "--metric", "loss", "--tuner", "sha:min_steps=1:eta=3",
        "--trials", 9, "--orders", 1,
    )  # fmt: skip
    (resumed,) = document(*arguments)["tuners"]
    (again,) = document(*arguments, "--from-scratch")["tuners"]
    # 9 trials to step 1, 3 of them on to 3, and 1 on to 9; or 3 to 3 and 1 to 9 once more.
    assert resumed["steps"]["median"] <= 9 + 3 * 2 + 6
    assert again["steps"]["median"] == resumed["steps"]["median"] + 3 * 1 + 3


def test_what_would_fail_at_the_end_is_refused_at_the_start(trace: Path, tmp_path: Path) -> None:
    found = command(trace, "--metric", "loss", "--tuner", "grid", "--target", "nan",
                    "--plot", tmp_path / "missing" / "a.svg")  # fmt: skip
    assert found.exit_code == 2
    text = found.output + found.stderr
    assert "--target must be finite" in text
    assert "--plot must be an .svg in a folder that exists" in text
