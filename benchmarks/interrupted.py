"""Studies as drivers leave them that are killed, written in the time of a simulation.

The real engine runs on simulated workers; a study's own recorder and checkpoint store write
what a run on a cluster would have written by then.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainers import Nothing

import dasktune as dt
from dasktune.algos.base import Tuner
from dasktune.engine.engine import Engine
from dasktune.engine.event_log import Record
from dasktune.engine.limits import Limits
from dasktune.engine.outcome import Outcome
from dasktune.graph.events import Event, RunStage, Saved, TrainingEnded
from dasktune.simulate.jobs import Mishaps
from dasktune.simulate.runner import Conditions, SimulatedRunner
from dasktune.storage.codec import encode
from dasktune.storage.database.columns import to_text
from dasktune.study.additions import recorder_of
from dasktune.traces.timing import EvenPace
from dasktune.types import Step

METRIC = "value"
WORKERS = 64
TOGETHER = 500
"""Events whose records are written together: a run writes what 0.1 s bring."""


class Noting(Nothing):
    """Trains nothing, and writes down when it does so first, after ``config["seconds"]``."""

    ignored_config = ("began", "seconds")

    def train(self) -> None:
        """Write the time down, once."""
        path = Path(self.config["began"])
        if not path.exists():
            path.write_text(repr(time.time()))
        time.sleep(self.config["seconds"])


class _KilledError(Exception):
    """The driver is gone."""


class _Recorded:
    """An engine whose outcomes are written as a runner does, until it has had enough reports."""

    def __init__(self, study: dt.Study, reports: float, *, keeps_states: bool = True) -> None:
        self.engine: Engine = study._optimizer.engine()
        self.reports = 0
        self._most = reports
        self._keeps_states = keeps_states
        self._store = study.store
        self._recorder = recorder_of(study.results)
        self._events = 0
        self._orders: dict[str, RunStage] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def begin(self, tuner: Tuner, **options: Any) -> Outcome:
        return self._written(self.engine.begin(tuner, **options))

    def ask(self, capacity: int, now: float) -> Outcome:
        return self._written(self.engine.ask(capacity, now))

    def handle(self, event: Event, now: float) -> Outcome:
        match event:
            case Saved():
                self._saved(event)
            case TrainingEnded():
                self._ended(event)
        outcome = self._written(self.engine.handle(event, now))
        if self.reports >= self._most:
            self.flush()
            raise _KilledError
        return outcome

    def flush(self) -> None:
        """Write what was gathered."""
        self._recorder.flush()

    def _written(self, outcome: Outcome) -> Outcome:
        self._recorder.outcome(outcome)
        self._events += 1
        if self._events % TOGETHER == 0:
            self.flush()
        for order in outcome.orders:
            if isinstance(order, RunStage):
                self._orders[order.attempt] = order
                self._recorder.launched(order, order.node.key_at(order.stop))
                self._recorder.started(order.attempt, time.time())
        return outcome

    def _saved(self, event: Saved) -> None:
        node = self.engine.view.attempts[event.attempt].leaf
        self._recorder.metrics(
            node, [(at, node.key_at(at), report) for at, report in event.reports]
        )
        self.reports += len(event.reports)
        if not self._keeps_states:
            return
        key = node.key_at(event.step)
        commit = self._store.save(
            encode({"value": 0.0}),
            key=key,
            attempt=event.attempt,
            step=event.step,
            reports=event.reports,
        )
        self._recorder.checkpoint(node, commit)

    def _ended(self, event: TrainingEnded) -> None:
        end = {"status": event.status, "step": event.step, "repeated": 0}
        self._recorder.ended(event.attempt, time.time(), **end)  # type: ignore[arg-type]
        self._recorder.settled(event.attempt)
        self._orders.pop(event.attempt, None)


def open_study(
    folder: Path,
    database: str | None = None,
    *,
    began: Path | None = None,
    step_seconds: float = 0.2,
) -> dt.Study:
    """Return the study in a folder, as a user's script would open it."""
    return dt.create_study(
        Noting,
        name="interrupted",
        storage=folder / "store",
        database=database,
        metric=METRIC,
        direction="minimize",
        load_if_exists=True,
        config={"began": str(began or folder / "began"), "seconds": step_seconds},
    )


def loss_of(values: Mapping[str, Any], step: Step) -> float:
    """Return a metric that falls, from what a trial's hyper-parameters are."""
    return 9973 * sum(map(float, values.values())) % 1 + 1 / step


def write_whole_study(folder: Path, tuner: Tuner, *, report_every: Step, workers: int) -> None:
    """Run a study to its end, without states in the store."""
    study = open_study(folder)
    recorded = _Recorded(study, math.inf, keeps_states=False)
    _runner(recorded, report_every, workers).run(tuner)
    recorded.flush()
    study.close()


def write_study(
    folder: Path, tuner: Tuner, reports: int, following: int, database: str | None = None
) -> tuple[int, list[Record]]:
    """Run a study until so many reports are written, and leave it there.

    Returns how many reports there are, and the records that the engine would have made of the
    `following` reports, had it not been killed: of trials that are under way, in the order of
    their numbers.
    """
    study = open_study(folder, database)
    recorded = _Recorded(study, reports)
    with suppress(_KilledError):
        _runner(recorded, 1, WORKERS).run(tuner)
    following_records = next_records(recorded.engine, following)
    study.close()
    return recorded.reports, following_records


def _runner(engine: _Recorded, report_every: Step, workers: int) -> SimulatedRunner:
    conditions = Conditions(
        curve=loss_of,
        pace=lambda sequences, start, stop, kind: EvenPace(1.0),
        mishaps=Mishaps(straggling=0.5, drop=0.0, seed=0),
        report_every=report_every,
    )
    return SimulatedRunner(engine, conditions, workers=workers, limits=Limits())  # type: ignore[arg-type]


def next_records(engine: Engine, count: int) -> list[Record]:
    """Return an engine's records of the next ends of trials that wait for one."""
    records: list[Record] = []
    for number in sorted(engine.view.wanted)[:count]:
        node = engine.view.wanted[number][0]
        values = {name: item(0) for name, item in engine.trials[number].sequences.items()}
        metrics = {METRIC: loss_of(values, node.stop)}
        outcome = engine.measured(number, node.stop, metrics, 0.0, seconds=1.0)
        written = (json.loads(to_text(record)) for record in outcome.records)
        records += [record for record in written if record["kind"] != "snapshot"]
    return records


def space(trials: int) -> dt.Space:
    """Return a grid of trials that have nothing in common."""
    across = max(1, round(trials**0.5))
    rates: Iterable[float] = (0.1 + 0.001 * at for at in range(-(-trials // across)))
    return dt.Space(lr=list(rates), width=list(range(across)))
