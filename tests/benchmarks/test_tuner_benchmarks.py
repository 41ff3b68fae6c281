"""The benchmarks of the tuners count what they say they count."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import dasktune as dt
from dasktune.simulate import Trace
from dasktune.simulate.jobs import Mishaps

pytestmark = pytest.mark.process

FOLDER = Path(__file__).parents[2] / "benchmarks"
MODULES = (
    "branching",
    "early_stopping",
    "figures",
    "given",
    "jobs",
    "promotions",
    "rivals",
    "spaces",
    "stragglers",
)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that imports a module of the benchmarks, for one test only."""
    monkeypatch.syspath_prepend(FOLDER)
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)

    def module(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield module
    for name in MODULES:
        sys.modules.pop(name, None)


def run(name: str, folder: Path, *options: str) -> dict[str, dict[str, Any]]:
    """Run the short version of a benchmark as users do; return its figures by name."""
    path = folder / "figures.json"
    command = [sys.executable, str(FOLDER / f"{name}.py"), "--short", "--json", str(path), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(path.read_text())
    found = {figure["name"]: figure for figure in document["figures"]}
    assert len(found) == len(document["figures"])
    assert {figure["reached"] for figure in found.values()} <= {True, None}
    return found


def test_asha_keeps_the_times_of_its_paper(tmp_path: Path) -> None:
    figures = run("promotions", tmp_path)
    toy = "first configuration trained to R, 9 machines, R 9, eta 3"
    assert figures[f"{toy}, from scratch"]["value"] == 13 / 9
    assert figures[f"{toy}, resumed"]["value"] == 1
    assert 1 <= figures["first configuration trained to R, 500 machines, resumed"]["value"] <= 1.05
    assert figures["mispromotions over the square root of n, at most"]["value"] <= 1


def test_stragglers_are_simulated_alike_in_two_ways_and_drawn(tmp_path: Path) -> None:
    plot = tmp_path / "panels.svg"
    figures = run("stragglers", tmp_path, "--plot", str(plot))
    same = figures["runs without stragglers that dasktune.simulate does not repeat to the last bit"]
    assert same["value"] == same["equals"] == 0
    drawn = plot.read_text()
    assert drawn.startswith("<svg")
    assert "nan" not in drawn
    assert drawn.count('class="curve') == 2 * 2 * 2 + 2
    assert all(words in drawn for words in ("drop probability", "std 1", "trained to R"))


def test_what_merging_saves_is_what_was_explored(tmp_path: Path) -> None:
    figures = run("early_stopping", tmp_path)
    for name in ("SHA", "ASHA"):
        saved = figures[f"{name}: steps trained without merging over with it, the same decisions"]
        assert saved["value"] == saved["equals"] > figures["merge rate p of the space"]["value"]


def test_auto_is_measured_by_source_of_curves(tmp_path: Path) -> None:
    recorded(tmp_path)
    figures = run("auto", tmp_path, "--data", str(tmp_path))
    assert 0 < figures["taskset: Auto's steps to the target, of the budget"]["value"] <= 1
    assert figures["lcbench: Auto's steps over those of the best of four"]["value"] > 0
    assert figures["taskset: Auto's steps over those of the best of other packages"]["value"] > 0


def test_rival_that_stops_nobody_trains_in_turn(load: Any) -> None:
    rivals, pruners = load("rivals"), importlib.import_module("optuna").pruners
    losses = np.array([[0.9, 0.8, 0.7], [0.9, 0.5, 0.1], [0.9, 0.4, 0.3]])

    def steps(pruner: Any, order: list[int], workers: int, most: int = 99) -> int | None:
        rival = rivals.OptunaPruner(pruner)
        found: int | None = rivals.steps_to_target(rival, losses, order, 0.1, workers, most)
        return found

    assert steps(pruners.NopPruner(), [0, 2, 1], 1) == 9
    assert steps(pruners.NopPruner(), [0, 1, 2], 2) == 6
    assert steps(pruners.NopPruner(), [0, 2, 1], 1, most=8) is None
    assert steps(pruners.NopPruner(), [0, 2], 1) is None
    assert steps(pruners.ThresholdPruner(upper=0.6), [0, 1, 2], 1) is None, "stopped at once"


def recorded(folder: Path) -> None:
    """Write curves as other people's are recorded: each gets to its own end, some diverge."""
    rng = np.random.default_rng(0)
    ends, speeds = rng.random((100, 1)), rng.uniform(0.1, 0.5, (100, 1))
    losses = (ends + np.exp(-speeds * np.arange(21))).astype(np.float32)
    losses[::17, 5:] = np.nan
    scores, named = 1 - losses[:, 1:] / 2, {"hparams": ends, "hparam_names": np.array(["lr"])}
    np.savez(
        folder / "taskset_imdb_dev.npz",
        loss=np.stack([losses] * 3, axis=1)[None],
        splits=np.array(["train", "valid", "test"]),
        tasks=np.array(["one"]),
        **named,
    )
    np.savez(
        folder / "lcbench_surrogate_dev.npz",
        val_accuracy=scores[None],
        val_cross_entropy=losses[None, :, 1:],
        test_balanced_accuracy=scores[None],
        cum_time_s=np.ones_like(scores)[None].cumsum(axis=2),
        tasks=np.array(["one"]),
        **named,
    )
    own = Trace.from_arrays({"val_accuracy": scores, "test_accuracy": scores})
    own.save(folder / "own_mlp_mnist.npz")


def test_jobs_start_from_scratch_and_are_done_again_when_dropped(load: Any) -> None:
    given, jobs = load("given"), load("jobs")

    def times(mishaps: Mishaps, seconds: float) -> list[float]:
        tuner = dt.algos.SHA(
            given.SPACE,
            trials=9,
            brackets=20,
            max_steps=9,
            min_steps=1,
            eta=3,
            sampler=given.with_losses(given.random_losses(180, 0)),
        )
        found: list[float] = jobs.Jobs(tuner, workers=9, mishaps=mishaps).run(seconds)
        return found

    # When the last of nine arrives at 1, the others' workers are at the next bracket until 2:
    # two of the three that go on wait for them, end at 5, and 9 more is 14.
    assert times(Mishaps(), 13.9) == []
    assert times(Mishaps(), 14.0) == [14.0]
    slow = times(Mishaps(straggling=1.0), 40.0)
    assert 14.0 < slow[0] < 40.0
    assert len(times(Mishaps(drop=0.2), 40.0)) < len(times(Mishaps(), 40.0))


def test_workers_without_work_are_no_benchmark(load: Any) -> None:
    given, jobs = load("given"), load("jobs")
    tuner = dt.algos.ASHA(
        given.SPACE, trials=9, max_steps=9, eta=3, sampler=given.with_losses([0.5] * 9)
    )
    with pytest.raises(RuntimeError, match="got 9 jobs for 10 of them"):
        jobs.Jobs(tuner, workers=10, mishaps=Mishaps()).run(9.0)


def test_whoever_is_late_or_trains_fewer_is_not_ahead(load: Any) -> None:
    stragglers = load("stragglers")

    def cell(times: list[list[float]]) -> Any:
        setting = stragglers.Setting(
            kind=stragglers.ASHA, deviation=1.0, drop=0.0, seed=0, seconds=100.0
        )
        return stragglers.Cell.of(setting, times)

    early, late, none = cell([[40.0, 50.0], [60.0]]), cell([[45.0, 50.0], [60.0]]), cell([[], []])
    assert (early.completed, early.first) == (1.5, 50.0)
    assert (none.completed, none.first, none.without) == (0, 100.0, 2)
    assert stragglers.is_ahead((early, late))
    assert not stragglers.is_ahead((late, early))
    assert not stragglers.is_ahead((early, early))
    assert not stragglers.is_ahead((cell([[30.0], [40.0]]), early))


def test_both_panels_are_drawn_alike_again(load: Any) -> None:
    stragglers = load("stragglers")

    def cell(kind: str, drop: float, completed: float) -> Any:
        return stragglers.Cell(
            kind=kind,
            deviation=0.5,
            drop=drop,
            completed=completed,
            first=300 - completed,
            without=0,
        )

    pairs = [
        (cell(stragglers.ASHA, drop, 8 - 100 * drop), cell(stragglers.SHA, drop, 6 - 100 * drop))
        for drop in (0.0, 0.01)
    ]
    drawn = str(stragglers.draw(pairs))
    assert drawn == str(stragglers.draw(pairs))
    marks = stragglers.draw(pairs).marks
    assert marks.count("stroke-dasharray") == 2 + 1
    assert stragglers.draw(pairs).width == 2 * stragglers.PANEL


def test_promotions_are_regretted_by_hand(load: Any) -> None:
    promotions = load("promotions")
    losses = [0.5, 0.6, 0.7, 0.8, 0.1, 0.2, 0.3, 0.4]
    # After four the best, 0.5, goes on; then 0.1 is better, and with eight 0.2 is in the top.
    assert promotions.regretted((4, 8), losses) == [0, 1]


def test_the_explored_beginnings_are_counted_by_hand(load: Any) -> None:
    early_stopping = load("early_stopping")
    space = dt.Space(lr=[0.1, dt.sequences.MultiStep(0.1, milestones=[4], gamma=0.5)])
    ran = dt.simulate(dt.algos.Grid(space, max_steps=6), lambda values, step: values["lr"])
    assert early_stopping.unique_steps(ran.trials) == 4 + 2 + 2
    again = dt.simulate(early_stopping.Again(ran.trials), lambda values, step: 0.0, merge=False)
    assert again.steps_executed == 12


def test_the_space_of_448_has_the_published_merge_rate(load: Any) -> None:
    spaces = load("spaces")
    space = spaces.hippo_448()
    assert space.size == 448
    rate = dt.preview(space, max_steps=spaces.STEPS, workers=40).merge_rate
    assert rate == pytest.approx(2.447, abs=0.01)


def test_branching_counts_the_steps_of_a_search_by_hand(load: Any) -> None:
    """Three trunks of 10 steps that part at 6: one is the target, the last to be proposed."""
    branching = load("branching")
    options = [dt.sequences.MultiStep(rate, [6], gamma=0.1) for rate in (1.0, 2.0)]
    space = dt.Space(lr=[1.0, *options])
    task = branching.Task(
        name="drops",
        space=space,
        value=lambda sequences, step: -1.0 if sequences["lr"](0) == 1.0 else 1.0,
        steps=10,
        trials=50,
        target=1.0,
    )
    order = branching.search(task, "grid", 0)
    assert (order.merged, order.alone, order.trials, order.reached) == (24, 30, 3, True)
    paused = branching.search_by(task, dt.algos.Grid(space, max_steps=10))
    assert paused == order
    hopeless = replace(task, target=2.0)
    assert branching.search_by(hopeless, dt.algos.Grid(space, max_steps=10)).merged == 500


def test_branching_needs_the_recorded_trials(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "branching.py"), "--data", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "a folder with own_stage" in done.stderr) == (2, True)
