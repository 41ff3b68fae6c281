"""Benchmarks run, count what they say they count, and tell a bound that was missed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dasktune as dt
from dasktune.sequences import Constant, MultiStep, Piecewise

pytestmark = pytest.mark.slow


@pytest.mark.cluster
def test_merging_counts_the_same_in_three_ways(run: Any) -> None:
    figures = run("merging")
    trained = figures["steps trained, by the trainer's count"]
    assert trained["value"] == trained["equals"] < figures["steps asked for"]["value"] == 144 * 12
    assert figures["random spaces merged like the naive reference"]["value"] == 20
    # No run beats the bound; else the bound or the clock is wrong.
    over = [figure["value"] for name, figure in figures.items() if "over the tree bound" in name]
    assert len(over) == 5
    assert min(over) >= 1


@pytest.mark.cluster
def test_reuse_trains_nothing_twice_but_what_it_reports(run: Any) -> None:
    figures = run("reuse")
    assert figures["steps trained by an overlapping study"]["value"] > 0
    repeated = figures["steps repeated per new branch, a checkpoint every 2"]
    assert 0 < repeated["value"] <= 1


@pytest.mark.process
def test_fair_shares_leave_no_worker_idle(run: Any) -> None:
    figures = run("fair_share")
    idle = [figure["value"] for name, figure in figures.items() if name.startswith("idle share")]
    assert idle == [0.0, 0.0, 0.0]
    missing = [figure["value"] for name, figure in figures.items() if name.startswith("missing")]
    assert all(0.0 <= value < 0.25 for value in missing)


@pytest.mark.process
def test_driver_cost_has_every_part(run: Any) -> None:
    figures = run("driver_cost")
    assert {figure["unit"] for figure in figures.values()} == {"ms", "us", "x"}
    stages = figures["driver CPU per stage, 100 trials, nothing in common"]
    assert stages["note"].startswith("100 stages")
    assert all(figure["value"] > 0 for figure in figures.values())


@pytest.mark.cluster
def test_overhead_is_compared_with_plain_distributed(run: Any) -> None:
    figures = run("overhead")
    compared = [figures.pop(name) for name in list(figures) if "over bare Dask" in name]
    assert len(compared) == 2
    assert all(figure["value"] > 0 for figure in compared)
    assert all(name.startswith("timeline, ") for name in figures)
    assert figures["timeline, messages per trial"]["value"] > 0


@pytest.mark.process
def test_the_database_is_compared_with_its_driver(run: Any) -> None:
    figures = run("database")
    assert len(figures) == 3
    assert all(figure["value"] > 0 for figure in figures.values())


@pytest.mark.cluster
def test_ways_through_the_driver_are_counted(run: Any) -> None:
    figures = run("ways")
    drawn = figures["files from the tuner's draw to the submission"]
    assert "algos/sampled.py" in drawn["note"]
    assert drawn["value"] == len(drawn["note"].split(", "))
    assert figures["files from the worker's message to the tuner's decision"]["value"] > 1


def test_the_structure_is_counted(load: Any) -> None:
    figures = {figure.name: figure for figure in load("structure").measure(short=True)}
    placement = figures["lines of placement and the modules that it imports"]
    assert "policy" in placement.note
    assert figures["modules of these"].value == len(placement.note.split(", "))


@pytest.mark.process
def test_checkpoints_are_compared_with_one_object(run: Any) -> None:
    figures = run("checkpoints")
    assert figures["small, objects of a checkpoint"]["value"] > 0
    ratios = [figure["value"] for name, figure in figures.items() if "over one raw" in name]
    assert len(ratios) == 2 * (5 + 4 + 4)
    assert min(ratios) > 0


def test_the_grid_is_the_one_of_the_figures(load: Any) -> None:
    spaces, merging = load("spaces"), load("merging")
    for workers, bound in merging.BOUNDS.items():
        cost = dt.preview(spaces.hippo_144(), max_steps=spaces.STEPS, workers=workers)
        assert cost.bound_steps == bound
    assert (cost.steps_requested, cost.steps_unique) == (spaces.REQUESTED, spaces.UNIQUE)
    assert round(cost.merge_rate, 4) == 2.4601


@pytest.mark.cluster
def test_a_large_study_is_read_in_every_way(run: Any) -> None:
    figures = run("large")
    # The peak of so few trials may lie below that of the imports.
    assert all(figure["value"] > 0 for name, figure in figures.items() if "memory" not in name)
    for name in ("summary", "dasktune report", "the page's first answers", "going on"):
        assert any(f"CPU of {name}" in each for each in figures), name


def test_the_naive_reference_counts_beginnings_by_hand(load: Any) -> None:
    space = dt.Space(lr=[Constant(0.1), MultiStep(0.1, milestones=[4], gamma=0.5)], width=[1, 1.0])
    # 1 and 1.0 are two values: two trees of 6 + 2 steps.
    assert load("merging").counted(space, 6) == 16
    late = dt.Space(lr=[Piecewise([1, 2], boundaries=[2]), Piecewise([3, 2], boundaries=[2])])
    assert load("merging").counted(late, 4) == 8


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
    assert figures.main("slow", lambda short: slow, ["--json", str(path)]) == 1
    assert "NO" in capsys.readouterr().out
    document = json.loads(path.read_text())
    assert document["figures"][0]["reached"] is False
    assert "| slow | slow | 3 x | <= 2.5 | NO |" in load("all").markdown([document])


def test_the_command_for_all_knows_each_benchmark(load: Any) -> None:
    every = load("all")
    named = {*every.NAMES, *every.WITH_DATA, "hardware"}
    programs = {
        path.stem
        for path in every.HERE.glob("*.py")
        if "sys.exit(main(" in (text := path.read_text()) or "sys.exit(\n" in text
    }
    assert programs - {"all"} == named
    assert all(set(table) <= named for table in every.TABLES.values())


@pytest.mark.process
def test_slots_are_busy_by_the_trainers_clock(run: Any) -> None:
    figures = run("utilisation")
    idle = [figure["value"] for name, figure in figures.items() if "idle" in name]
    assert len(idle) == 4
    assert all(0 <= share < 1 for share in idle)
    assert all(figure["value"] > 0 for name, figure in figures.items() if "CPU" in name)


def test_idle_share_counts_from_first_start_to_last_stage(load: Any) -> None:
    busy = load("utilisation").busy
    # Two slots; the third stage is the last that begins while another one waits.
    spans = [(0.0, 4.0), (1.0, 3.0), (3.0, 5.0), (4.0, 9.0)]
    assert busy(spans, [0.0, 1.0, 3.0, 4.0], 2) == (3 + 2) / (2 * 3)
    assert busy([(0.0, 9.0)] * 2, [0.0, 0.0, 5.0, 5.0], 2) == 1
