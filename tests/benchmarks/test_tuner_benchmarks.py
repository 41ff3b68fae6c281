"""The benchmarks of the tuners count what they say they count."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dasktune as dt
from dasktune.simulate import Trace

pytestmark = pytest.mark.process


def test_asha_keeps_the_times_of_its_paper(run: Any) -> None:
    figures = run("asha", forked=False)
    toy = "first configuration trained to R, 9 machines, R 9, eta 3"
    assert figures[f"{toy}, from scratch"]["value"] == 13 / 9
    assert figures[f"{toy}, resumed"]["value"] == 1
    assert 1 <= figures["first configuration trained to R, 500 machines, resumed"]["value"] <= 1.05
    leads = [each for name, each in figures.items() if name.startswith("ASHA's lead")]
    assert len(leads) == 4


def test_what_merging_saves_is_what_was_explored(run: Any) -> None:
    figures = run("hippo")
    saved = figures["SHA: steps trained without merging over with it"]
    assert saved["value"] == saved["equals"] > 2.45
    assert figures["ASHA: steps trained without merging over with it"]["value"] > 1
    grid = figures["BERT grid: work without merging over with it"]
    assert grid["value"] == grid["equals"] == pytest.approx(2.045, abs=0.01)


def test_auto_is_measured_by_source_of_curves(run: Any, tmp_path: Path) -> None:
    recorded(tmp_path)
    figures = run("auto", "--data", str(tmp_path), forked=False)
    assert 0 < figures["taskset: Auto's steps to the target, of the budget"]["value"] <= 1
    assert figures["lcbench: Auto's steps over those of the best of four"]["value"] > 0
    assert figures["taskset: Auto's steps over those of Random"]["value"] > 0


def recorded(folder: Path) -> None:
    """Write curves as other people's are recorded: each gets to its own end, some diverge."""
    rng = np.random.default_rng(0)
    ends, speeds = rng.random((100, 1)), rng.uniform(0.1, 0.5, (100, 1))
    losses = (ends + np.exp(-speeds * np.arange(21))).astype(np.float32)
    losses[::17, 5:] = np.nan
    scores = 1 - losses[:, 1:] / 2
    np.savez(
        folder / "taskset_imdb_dev.npz",
        loss=np.stack([losses] * 3, axis=1)[None],
        splits=np.array(["train", "valid", "test"]),
        tasks=np.array(["one"]),
    )
    np.savez(
        folder / "lcbench_surrogate_dev.npz",
        val_accuracy=scores[None],
        cum_time_s=np.ones_like(scores)[None].cumsum(axis=2),
        tasks=np.array(["one"]),
    )
    Trace.from_arrays({"val_accuracy": scores}).save(folder / "own_mlp_mnist.npz")


def test_whoever_is_late_or_trains_fewer_is_not_ahead(load: Any) -> None:
    def cell(times: list[list[float]]) -> Any:
        return load("asha").Cell.of(times, 100.0)

    early, late, none = cell([[40.0, 50.0], [60.0]]), cell([[45.0, 50.0], [60.0]]), cell([[], []])
    assert (early.completed, early.first) == (1.5, 50.0)
    assert (none.completed, none.first) == (0, 100.0)
    assert early.is_ahead(late)
    assert not late.is_ahead(early)
    assert not early.is_ahead(early)
    assert not cell([[30.0], [40.0]]).is_ahead(early)


def test_the_explored_beginnings_are_counted_by_hand(load: Any) -> None:
    space = dt.Space(lr=[0.1, dt.sequences.MultiStep(0.1, milestones=[4], gamma=0.5)])
    ran = dt.simulate(dt.algos.Grid(space, max_steps=6), lambda values, step: values["lr"])
    trained = [(trial.sequences, trial.steps) for trial in ran.trials]
    assert load("spaces").unique_steps(trained) == 4 + 2 + 2


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
    order = branching.search(task, dt.algos.Grid(space, max_steps=10))
    assert (order.merged, order.alone, order.trials, order.reached) == (24, 30, 3, True)
    hopeless = replace(task, target=2.0)
    assert branching.search(hopeless, dt.algos.Grid(space, max_steps=10)).merged == 500


def test_branching_needs_the_recorded_trials(
    load: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    branching = load("branching")
    data = {"type": Path}
    assert branching.main("branching", branching.measure, ["--data", str(tmp_path)], data=data) == 2
    assert "--data must be a folder with own_stage" in capsys.readouterr().err
