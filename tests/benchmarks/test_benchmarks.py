"""Benchmarks run, count what they say they count, and tell a bound that was missed."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dasktune as dt
from dasktune.sequences import Constant, MultiStep, Piecewise
from tests.forked import run_forked

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "benchmarks"
MODULES = (
    "figures",
    "pairs",
    "spaces",
    "trainers",
    "merging",
    "overhead",
    "wall_time",
    "utilisation",
    "all",
)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that imports a module of the benchmarks, for one test only."""
    monkeypatch.syspath_prepend(FOLDER)
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)

    def module(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield module
    for name in MODULES:
        sys.modules.pop(name, None)


def run(name: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Run the short version of a benchmark as users do; return its figures by name."""
    path = folder / "figures.json"
    command = [sys.executable, str(FOLDER / f"{name}.py"), "--short", "--json", str(path)]
    done = run_forked(command, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(path.read_text())
    assert document["benchmark"] == name
    assert document["machine"]["cores"] >= 1
    assert document["machine"]["versions"]["dasktune"]
    found = {figure["name"]: figure for figure in document["figures"]}
    assert len(found) == len(document["figures"])
    assert {figure["reached"] for figure in found.values()} <= {True, None}
    return found


@pytest.mark.cluster
def test_merging_counts_the_same_in_three_ways(tmp_path: Path) -> None:
    figures = run("merging", tmp_path)
    trained = figures["steps trained, by the trainer's count"]
    assert trained["value"] == trained["equals"] < figures["steps asked for"]["value"] == 144 * 12
    assert figures["random spaces merged like the naive reference"]["value"] == 20


@pytest.mark.cluster
@pytest.mark.slow
def test_reuse_trains_nothing_twice_but_what_it_reports(tmp_path: Path) -> None:
    figures = run("reuse", tmp_path)
    assert figures["steps trained by an overlapping study"]["value"] > 0
    repeated = figures["steps repeated per new branch, a checkpoint every 2"]
    assert 0 < repeated["value"] <= 1


@pytest.mark.process
def test_fair_shares_leave_no_worker_idle(tmp_path: Path) -> None:
    figures = run("fair_share", tmp_path)
    idle = [figure["value"] for name, figure in figures.items() if name.startswith("idle share")]
    assert idle == [0.0, 0.0, 0.0]
    missing = [figure["value"] for name, figure in figures.items() if name.startswith("missing")]
    assert all(0.0 <= value < 0.25 for value in missing)


@pytest.mark.cluster
def test_wall_time_is_a_multiple_of_the_bound(tmp_path: Path) -> None:
    figures = run("wall_time", tmp_path)
    assert sum("simulated" in name for name in figures) == 4
    # No run beats the bound; else the bound or the clock is wrong.
    assert all(figure["value"] >= 1 for name, figure in figures.items() if "over" in name)
    assert figures["mean step"]["value"] >= 2


@pytest.mark.process
def test_driver_cost_has_every_part(tmp_path: Path) -> None:
    figures = run("driver_cost", tmp_path)
    assert {figure["unit"] for figure in figures.values()} == {"ms", "us", "x", "MiB"}
    stages = figures["driver CPU per stage, 100 trials, nothing in common"]
    assert stages["note"].startswith("100 stages")
    assert all(figure["value"] > 0 for name, figure in figures.items() if "memory" not in name)


@pytest.mark.cluster
def test_overhead_is_compared_with_plain_distributed(tmp_path: Path) -> None:
    figures = run("overhead", tmp_path)
    assert {name.split(",")[0] for name in figures} >= {"dasktune", "optuna-memory"}
    assert all(figure["value"] > 0 for figure in figures.values())


def test_hand_made_tree_has_each_step_once(load: Any) -> None:
    spaces, overhead, steps = load("spaces"), load("overhead"), 12
    segments = list(overhead._segments(overhead._schedules(steps)))
    cost = dt.preview(spaces.hippo_144(), max_steps=steps, workers=1)
    assert sum(length for _, length, _ in segments) == cost.steps_unique
    assert sum(leaves for _, _, leaves in segments) == 144


def test_kept_ratios_are_those_that_overhead_measures(load: Any) -> None:
    overhead = load("overhead")
    kept = load("pairs").released(overhead.RELEASED)
    works = {what.name.format(trials=what.trials) for what in overhead.WORKS.values()}
    assert {name.split(", ")[1] for name in kept} == works
    pair = load("pairs").Pair((((2.0, 1.0), (3.0, 2.0)),))
    title = next(iter(kept)).removesuffix(", wall")
    wall, _ = pair.figures(title, None, kept)
    assert wall.note.endswith(f"the last release had {kept[f'{title}, wall']:.2f}")


@pytest.mark.process
def test_the_database_is_compared_with_its_driver(tmp_path: Path) -> None:
    figures = run("database", tmp_path)
    assert all(figure["value"] > 0 for figure in figures.values())
    assert "opening a study of 20,000 reports over one of 200, SQLite" in figures
    assert sum("time to write reports" in name for name in figures) in (3, 6)


def test_the_grid_is_the_one_of_the_figures(load: Any) -> None:
    spaces, wall_time = load("spaces"), load("wall_time")
    for workers, bound in wall_time.BOUNDS.items():
        cost = dt.preview(spaces.hippo_144(), max_steps=spaces.STEPS, workers=workers)
        assert cost.bound_steps == bound
    assert (cost.steps_requested, cost.steps_unique) == (spaces.REQUESTED, spaces.UNIQUE)
    assert round(cost.merge_rate, 4) == 2.4601


@pytest.mark.cluster
def test_a_large_study_is_read_in_every_way(tmp_path: Path) -> None:
    figures = run("large", tmp_path)
    # The peak of so few trials may lie below that of the imports.
    assert all(figure["value"] > 0 for name, figure in figures.items() if "memory" not in name)
    for name in ("summary", "dasktune report", "the page's first answers", "going on"):
        assert any(f"CPU of {name}" in each for each in figures), name


def test_the_naive_reference_counts_beginnings_by_hand(load: Any) -> None:
    space = dt.Space(lr=[Constant(0.1), MultiStep(0.1, milestones=[4], gamma=0.5)], width=[1, 1.0])
    # 1 and 1.0 are two values: two trees of 6 + 2 steps.
    assert load("merging").unique_steps(space, 6) == 16
    late = dt.Space(lr=[Piecewise([1, 2], boundaries=[2]), Piecewise([3, 2], boundaries=[2])])
    assert load("merging").unique_steps(late, 4) == 8


def test_a_figure_knows_whether_it_was_reached(load: Any) -> None:
    figure = load("figures").Figure
    assert figure(name="a", value=1.0, at_most=1.0).reached is True
    assert figure(name="a", value=1.01, at_most=1.0).reached is False
    assert figure(name="a", value=0.0, equals=0).reached is True
    assert figure(name="a", value=1.0, equals=0).reached is False
    assert figure(name="a", value=1.0).reached is None


def test_a_missed_bound_is_an_exit_code_and_a_line(
    load: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = load("figures")
    slow = [figures.Figure(name="slow", value=3.0, unit="x", at_most=2.5)]
    path = tmp_path / "figures.json"
    assert figures.main("slow", lambda short: slow, arguments=["--json", str(path)]) == 1
    assert "NO" in capsys.readouterr().out
    document = json.loads(path.read_text())
    assert document["figures"][0]["reached"] is False
    assert "| slow | slow | 3 x | <= 2.5 | NO |" in load("all").markdown([document])


@pytest.mark.process
def test_slots_are_busy_by_two_clocks(tmp_path: Path) -> None:
    figures = run("utilisation", tmp_path)
    idle = {name: figure["value"] for name, figure in figures.items() if "idle" in name}
    assert len(idle) == 5
    assert all(0 <= share < 1 for share in idle.values())
    assert idle["idle share of 16 simulated slots while there is work"] < 0.1
    assert all(figure["value"] > 0 for name, figure in figures.items() if "CPU" in name)


def test_idle_share_counts_from_first_start_to_last_stage(load: Any) -> None:
    busy = load("utilisation")._busy
    # Two slots; the third stage is the last that begins while another one waits.
    spans = [(0.0, 4.0), (1.0, 3.0), (3.0, 5.0), (4.0, 9.0)]
    assert busy(spans, [0.0, 1.0, 3.0, 4.0], 2) == (3 + 2) / (2 * 3)
    assert busy([(0.0, 9.0)] * 2, [0.0, 0.0, 5.0, 5.0], 2) == 1
