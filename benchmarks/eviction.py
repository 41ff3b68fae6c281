"""The effect of the constants of eviction: steps trained in a small store, on a virtual clock.

Each constant is neutralised in turn, and the same studies run again with a tenth or a twentieth
of the room that all their states take. Workers are simulated; the evictor, the values of states
and the store are the real ones.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any
from uuid import uuid4
from zlib import crc32

from figures import Figure, main
from spaces import STEPS, hippo_144, hippo_448

import dasktune as dt
from dasktune.algos.base import Tuner
from dasktune.driver.retention import evict, value
from dasktune.driver.retention.evict import Evictor
from dasktune.driver.retention.listing import COMMIT_NBYTES
from dasktune.engine.engine import Engine
from dasktune.engine.limits import Limits
from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import Event, Saved
from dasktune.graph.keys import root_key
from dasktune.graph.save_policy import SavePolicy
from dasktune.simulate.jobs import Mishaps
from dasktune.simulate.runner import Conditions, SimulatedRunner
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.codec import encode
from dasktune.storage.database.database import Database
from dasktune.storage.retention import Keep, Retention
from dasktune.traces.timing import EvenPace
from dasktune.types import Objective, Step

WORKERS = 2
LOSS = Objective.single("value", "minimize")
STATE = encode({"weights": 1.0})

Constants = Mapping[str, object]
VARIANTS: dict[str, Constants] = {
    "as they are": {},
    "GOES_ON 0.5": {"GOES_ON": 0.5},
    "STEEPNESS 0, the same for all": {"STEEPNESS": 0},
    "STEEPNESS 1": {"STEEPNESS": 1},
    "STEEPNESS 16": {"STEEPNESS": 16},
    "END as INSIDE": {"END": 0.002},
    "INSIDE as END": {"INSIDE": 0.02},
    "INSIDE, END 0.1": {"INSIDE": 0.1, "END": 0.1},
    "SLACK 0": {"SLACK": 0.0},
    "SLACK 0.2": {"SLACK": 0.2},
    "never CROWDED": {"CROWDED": (2.0, 0.0)},
    "always CROWDED": {"CROWDED": (-1.0, -1.0)},
    "CROWDED 0.5, 0.5": {"CROWDED": (0.5, 0.5)},
    "CROWDED 0.8, 0.4": {"CROWDED": (0.8, 0.4)},
}


def tuners(steps: int, trials: int) -> dict[str, Callable[[], Tuner]]:
    """Return the tuners that are run, by name."""
    first = max(1, steps // 8)
    return {
        "Grid": lambda: dt.algos.Grid(hippo_144(), max_steps=steps),
        "SHA": lambda: dt.algos.SHA(hippo_448(), trials=trials, max_steps=steps, min_steps=first),
        "ASHA": lambda: dt.algos.ASHA(hippo_448(), trials=trials, max_steps=steps, min_steps=first),
    }


class StoredRunner(SimulatedRunner):
    """A simulated run whose states lie in a real store."""

    store: CheckpointStore
    evictor: Evictor | None = None
    most = 0

    def _tell(self, event: Event) -> None:
        attempt = self.engine.view.attempts.get(getattr(event, "attempt", ""))
        if isinstance(event, Saved) and attempt is not None:
            node, step = attempt.node_at(event.step), event.step
            key = node.key_at(step)
            commit = self.store.save(STATE, key=key, attempt=event.attempt, step=step, seconds=1.0)
            if self.evictor is not None:
                self.evictor.saved(node, commit)
        super()._tell(event)
        while self.evictor is not None:
            for following in self.evictor.turn():
                super()._tell(following)
            if not self.evictor.is_busy:
                break
            threading.Event().wait(0.0002)


def run(make: Callable[[], Tuner], budget: int | None, most: Step | None) -> StoredRunner:
    """Return a run of a tuner over a real store, cut after `most` steps."""
    options = DispatchOptions(attempt_prefix="a", saves=SavePolicy())
    engine = Engine(Dispatcher(root_key("play", 0), options), objective=LOSS, trials={})
    conditions = Conditions(
        curve=curve,
        pace=lambda sequences, start, stop: EvenPace(1.0),
        mishaps=Mishaps(straggling=0.3, drop=0.0, seed=0),
    )
    runner = StoredRunner(engine, conditions, workers=WORKERS, limits=Limits(steps=most))
    runner.store = CheckpointStore(f"memory://{uuid4().hex}")
    with closing(Database("sqlite://")) as database:
        if budget is not None:
            runner.evictor = Evictor(
                runner.store,
                database,
                Retention(budget=budget, keep=Keep.parse("best:1")),
                view=engine.view,
                trials=engine.trials,
                objective=LOSS,
                clock=lambda: 0.0,
            )
            runner.evictor.open()
        try:
            runner.run(make())
        finally:
            if runner.evictor is not None:
                engine.dismiss()
                engine.evicted(runner.evictor.close())
    return runner


def curve(values: Mapping[str, Any], step: int) -> float:
    """Return a loss that falls with the step and depends on all values there."""
    return sum(crc32(f"{name} {one}".encode()) % 97 for name, one in values.items()) / 97 + 5 / step


@contextmanager
def replaced(constants: Constants) -> Iterator[None]:
    """Run with other constants."""
    before = []
    for name, constant in constants.items():
        for module in (evict, value):
            if hasattr(module, name):
                before.append((module, name, getattr(module, name)))
                setattr(module, name, constant)
    try:
        yield
    finally:
        for module, name, constant in before:
            setattr(module, name, constant)


def measure(short: bool) -> list[Figure]:
    """Return the steps trained in a small store, over those without a budget."""
    figures = []
    for name, make in tuners(STEPS // 2 if short else STEPS, 40 if short else 448).items():
        free = run(make, None, None)
        steps = free.engine.view.steps_executed
        nbytes = sum(one.nbytes + COMMIT_NBYTES for one in free.store.inventory())
        for part in (10,) if short else (5, 20):
            for variant, constants in VARIANTS.items():
                with replaced(constants):
                    tight = run(make, nbytes // part, 2 * steps)
                executed = tight.engine.view.steps_executed
                is_cut = ", cut" if tight.limit else ""
                figures.append(
                    Figure(
                        name=f"{name}, 1/{part} of the room, {variant}",
                        value=executed / steps,
                        unit="x",
                        note=f"{executed:,} steps{is_cut}, {tight.now:,.0f} s",
                    )
                )
    return figures


if __name__ == "__main__":
    sys.exit(main("eviction", measure))
