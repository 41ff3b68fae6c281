"""Two drivers at once on one store: what both want is trained once."""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from figures import Figure, main
from trainers import Counting

import dasktune as dt
from dasktune.algos.base import known_configurations
from dasktune.cluster.local import local_client
from dasktune.graph.cost import cost_of
from dasktune.sequences import MultiStep

STEPS, SHORT_STEPS = 60, 12
STEP_SECONDS = 0.005
WORKERS = 2
LATE_SHARE = 0.03
GAMMAS = ((0.1, 0.5, 0.9), (0.1, 0.5, 0.7))
"""Of the three decays of each driver's 144 trials, two are the other's as well."""


def space(gammas: tuple[float, ...], steps: int) -> dt.Space:
    """Return 144 trials: four rates, twelve milestones, three decays."""
    return dt.Space(
        lr=[
            MultiStep(lr, milestones=[(at + 1) * steps // 13 + 1], gamma=gamma)
            for lr in (0.1, 0.2, 0.3, 0.4)
            for at in range(12)
            for gamma in gammas
        ]
    )


def drive(options: Mapping[str, Any]) -> None:
    """Run one driver's study; leave its summary in a file."""
    folder, number, steps = Path(options["folder"]), options["number"], options["steps"]
    study = dt.create_study(
        Counting,
        name=f"study {number}",
        storage=str(folder / "store"),
        database=str(folder / f"{number if options['apart'] else 'common'}.db"),
        metric="value",
        direction="minimize",
        config={"log": str(folder / f"{number}.log"), "seconds": STEP_SECONDS},
    )
    with local_client(WORKERS) as client:
        began = time.perf_counter()
        tuner = dt.algos.Grid(space(GAMMAS[number], steps), max_steps=steps)
        study.optimize(tuner, client=client, progress=False, last_line=False)
        seconds = time.perf_counter() - began
    document = {**study.summary(), "seconds": seconds}
    (folder / f"{number}.json").write_text(json.dumps(document))
    study.close()


def measure(short: bool) -> list[Figure]:
    """Run two drivers with a common database, and two that have only the store in common."""
    steps = SHORT_STEPS if short else STEPS
    everything = [
        (configuration.sequences, steps)
        for gammas in GAMMAS
        for configuration in known_configurations(
            dt.algos.Grid(space(gammas, steps), max_steps=steps)
        )
    ]
    cost = cost_of(everything, workers=2 * WORKERS)
    return [
        *_figures("one database", steps, cost.steps_unique, apart=False),
        *_figures("a database each", steps, cost.steps_unique, apart=True),
        Figure(
            name="q: steps asked for by both over those that are unique",
            value=cost.merge_rate,
            unit="x",
        ),
    ]


def _figures(name: str, steps: int, unique: int, *, apart: bool) -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        drivers = [
            context.Process(
                target=drive,
                args=({"folder": folder, "number": number, "steps": steps, "apart": apart},),
            )
            for number in (0, 1)
        ]
        for driver in drivers:
            driver.start()
        for driver in drivers:
            driver.join()
        summaries = [json.loads((Path(folder) / f"{at}.json").read_text()) for at in (0, 1)]
        trained = sum(len((Path(folder) / f"{at}.log").read_text().splitlines()) for at in (0, 1))
    reported = sum(each["steps_repeated"] for each in summaries)
    shares = ", ".join(f"{each['steps_executed']:,}" for each in summaries)
    seconds = " and ".join(f"{summary['seconds']:.1f} s" for summary in summaries)
    return [
        Figure(
            name=f"steps trained by two drivers, {name}, less the repeated ones they report",
            value=trained - reported,
            unit="steps",
            equals=unique,
            note=f"counted by the training code; {shares} each, in {seconds}",
        ),
        Figure(
            name=f"steps repeated because a wish came too late, {name}, over the unique ones",
            value=reported / unique,
            at_most=LATE_SHARE,
            note=f"{reported} steps",
        ),
    ]


if __name__ == "__main__":
    sys.exit(main("drivers", measure))
