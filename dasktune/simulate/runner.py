"""The simulated runner: the engine over a virtual clock and workers that only wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil
from typing import Literal

from dasktune.algos.base import Tuner
from dasktune.engine import Engine, Order, Outcome
from dasktune.errors import InternalError, refuse
from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import (
    Ended,
    Event,
    RunStage,
    Saved,
    SaveMissed,
    SavePoint,
    Started,
    StopStage,
    WorkerJoined,
)
from dasktune.graph.keys import root_key
from dasktune.graph.saves import SavePolicy
from dasktune.simulate.result import Happening, Simulation
from dasktune.trials import trial_of
from dasktune.types import Direction, Objective, Step, Value

Values = Mapping[str, Value]

Curves = Callable[[Values, Step], float]
"""The metric after `step` steps, given the hyper-parameters at the last of them."""


@dataclass(slots=True)
class _Running:
    """An attempt on a simulated worker."""

    order: RunStage
    began: float
    pace: float
    stop: Step
    saves: set[Step]
    launched: float
    version: int = 0

    def time_of(self, step: Step) -> float:
        """Return when `step` steps will have been trained."""
        return self.began + (step - self.order.start) * self.pace

    def next_step(self, after: Step) -> Step:
        """Return the next step at which something is to be said."""
        return min((step for step in self.saves if after < step < self.stop), default=self.stop)


@dataclass(slots=True)
class _Worker:
    name: str
    queue: deque[RunStage] = field(default_factory=deque)
    running: _Running | None = None


class SimulatedRunner:
    """Runs an engine on simulated workers until its tuner has ended.

    Parameters
    ----------
    engine
        What is run.
    curves
        Gives the metric.
    workers
        How many.
    seconds_per_step
        Virtual seconds that a step takes, or a function of the values at the stage's
        first step.
    resume
        Whether stages start from saved states. False trains again from step 0 whatever a
        worker does not hold already.
    """

    def __init__(
        self,
        engine: Engine,
        curves: Curves,
        *,
        workers: int,
        seconds_per_step: float | Callable[[Values], float] = 1.0,
        resume: bool = True,
    ) -> None:
        self.engine = engine
        self.steps_again = 0
        self.happenings: list[Happening] = []
        self.now = 0.0
        self.worker_seconds = 0.0
        self._curves = curves
        self._pace = seconds_per_step
        self._resume = resume
        self._workers = {f"w{index}": _Worker(f"w{index}") for index in range(workers)}
        self._due: list[tuple[float, int, _Worker, _Running, Step, int]] = []
        self._count = 0
        self._cancelled: dict[str, Step] = {}
        self._extra: dict[str, set[Step]] = {}

    def run(self, tuner: Tuner) -> None:
        """Run a tuner from its first question to its end."""
        self._carry_out(
            self.engine.begin(tuner, place=0, capacity=len(self._workers), now=self.now)
        )
        for name in self._workers:
            self._tell(WorkerJoined(worker=name))
        while not (self.engine.finished and self.engine.dispatcher.is_idle):
            self._ask_for_more()
            if not self._due:
                if self.engine.finished:
                    break
                raise InternalError("the tuner has not ended, and nothing is running")
            self._advance()

    def _ask_for_more(self) -> None:
        idle = self.engine.dispatcher.idle_workers
        if idle and not self.engine.finished:
            self._carry_out(self.engine.ask(idle, self.now))

    def _advance(self) -> None:
        """Go to the next thing that happens."""
        at, _, worker, running, step, version = heappop(self._due)
        if running.version != version:
            return
        self.now = at
        order = running.order
        self._note("saved", worker, step, order)
        ended = step >= running.stop
        if ended:
            self._finish(worker, running, step)
        else:
            self._schedule(worker, running, step)
        reports = ((step, {self.engine.objective.metrics[0]: self._metric(order, step)}),)
        self._tell(Saved(attempt=order.attempt, step=step, reports=reports))
        if ended:
            seconds = (step - order.start) * running.pace
            status: Literal["trained", "stopped"]
            status = "trained" if step == order.stop else "stopped"
            self._tell(Ended(attempt=order.attempt, step=step, status=status, seconds=seconds))
            self._start_next(worker)

    def _metric(self, order: RunStage, step: Step) -> float:
        last = max(step - 1, 0)
        values = {name: function(last) for name, function in order.node.sequences.items()}
        return self._curves(values, step)

    def _finish(self, worker: _Worker, running: _Running, step: Step) -> None:
        self._note("ended", worker, step, running.order)
        self.worker_seconds += self.now - running.launched
        self._extra.pop(running.order.attempt, None)
        worker.running = None

    def _start_next(self, worker: _Worker) -> None:
        while worker.queue and worker.running is None:
            order = worker.queue.popleft()
            attempt = order.attempt
            stop = min(order.stop, self._cancelled.pop(attempt, order.stop))
            if stop <= order.start < order.stop:
                self._tell(Ended(attempt=attempt, step=order.start, status="stopped"))
                continue
            saves = {*order.saves, *self._extra.pop(attempt, ())}
            pace = self._pace_of(order)
            again = 0 if self._resume or order.after is not None else order.start
            self.steps_again += again
            running = _Running(order, self.now + again * pace, pace, stop, saves, self.now)
            worker.running = running
            self._note("started", worker, order.start, order)
            self._tell(Started(attempt=attempt))
            self._schedule(worker, running, order.start)

    def _pace_of(self, order: RunStage) -> float:
        if not callable(self._pace):
            return self._pace
        sequences = order.node.sequences.items()
        return self._pace({name: function(order.start) for name, function in sequences})

    def _schedule(self, worker: _Worker, running: _Running, after: Step) -> None:
        step = running.next_step(after)
        self._count += 1
        entry = (running.time_of(step), self._count, worker, running, step, running.version)
        heappush(self._due, entry)

    def _tell(self, event: Event) -> None:
        self._carry_out(self.engine.handle(event, self.now))

    def _carry_out(self, outcome: Outcome) -> None:
        for order in outcome.orders:
            self._obey(order)

    def _obey(self, order: Order) -> None:
        worker = self._workers[order.worker]
        match order:
            case RunStage():
                worker.queue.append(order)
                if worker.running is None:
                    self._start_next(worker)
            case SavePoint():
                self._save_point(worker, order)
            case StopStage():
                self._stop(worker, order)

    def _save_point(self, worker: _Worker, order: SavePoint) -> None:
        running = worker.running
        if running is None or running.order.attempt != order.attempt:
            self._extra.setdefault(order.attempt, set()).add(order.step)
        elif running.time_of(order.step) <= self.now:
            self._tell(SaveMissed(attempt=order.attempt, step=order.step))
        else:
            running.saves.add(order.step)
            self._replan(worker, running)

    def _stop(self, worker: _Worker, order: StopStage) -> None:
        running = worker.running
        if running is None or running.order.attempt != order.attempt:
            self._cancelled[order.attempt] = 0 if order.at is None else order.at
            return
        reached = self._reached(running)
        running.stop = min(running.stop, reached if order.at is None else max(order.at, reached))
        self._replan(worker, running)

    def _reached(self, running: _Running) -> Step:
        """Return the step that the running one brings: a step is never cut short."""
        done = max(0.0, (self.now - running.began) / running.pace) if running.pace else 0.0
        return min(running.stop, running.order.start + max(1, ceil(done - 1e-9)))

    def _replan(self, worker: _Worker, running: _Running) -> None:
        running.version += 1
        done = max(0.0, (self.now - running.began) / running.pace) if running.pace else 0.0
        passed = running.order.start + int(done + 1e-9)
        self._schedule(worker, running, min(passed, running.stop - 1))

    def _note(self, kind: str, worker: _Worker, step: Step, order: RunStage) -> None:
        self.happenings.append(
            Happening(at=self.now, kind=kind, worker=worker.name, attempt=order.attempt, step=step)
        )


def simulate(
    tuner: Tuner,
    curves: Curves,
    *,
    workers: int = 1,
    metric: str = "value",
    direction: str | Direction = Direction.MINIMIZE,
    seconds_per_step: float | Callable[[Values], float] = 1.0,
    merge: bool = True,
    resume: bool = True,
) -> Simulation:
    """Run a tuner without training, on a virtual clock.

    The very state machine of live runs decides; only the workers are simulated.

    Parameters
    ----------
    tuner
        What to run.
    curves
        ``f(values, step) -> float``: the metric after `step` steps, given the
        hyper-parameters at the last of them.
    workers
        How many simulated workers.
    metric, direction
        As for `dasktune.create_study`.
    seconds_per_step
        Virtual seconds that a step takes, or a function of the hyper-parameters.
    merge
        Whether trials share what they have in common.
    resume
        Whether stages start from saved states. False trains again from step 0 whatever a
        worker does not hold already, as tools without checkpoints do.

    Raises
    ------
    ConfigurationError
        If there are no workers, `curves` is no function, or a step takes no time that
        can be.

    Examples
    --------
    >>> import dasktune as dt
    >>> tuner = dt.algos.Grid(dt.Space(lr=[0.1, 0.2]), max_steps=10)
    >>> found = dt.simulate(tuner, lambda values, step: values["lr"] / step, workers=2)
    >>> found.seconds, found.best_trial.params
    (10.0, {'lr': 0.1})
    """
    towards = Direction.parse(direction)
    refuse(_problems(curves, workers, seconds_per_step))
    options = DispatchOptions(merge=merge, saves=SavePolicy(at_changes=False))
    dispatcher = Dispatcher(root_key("simulated", 0), options)
    engine = Engine(dispatcher, objective=Objective.single(metric, towards), trials={})
    runner = SimulatedRunner(
        engine, curves, workers=workers, seconds_per_step=seconds_per_step, resume=resume
    )
    runner.run(tuner)
    return Simulation(
        trials=[trial_of(dispatcher.plan, record) for record in engine.trials.values()],
        events=runner.happenings,
        seconds=runner.now,
        plan=dispatcher.plan,
        records=engine.trials,
        direction=towards,
        steps_executed=dispatcher.steps_executed + runner.steps_again,
        steps_repeated=dispatcher.steps_repeated + runner.steps_again,
        worker_seconds=runner.worker_seconds,
    )


def _problems(curves: object, workers: object, seconds_per_step: object) -> list[str]:
    found = []
    if not callable(curves):
        found.append(f"curves must be a function of (values, step), got {curves!r}")
    is_time = isinstance(seconds_per_step, int | float) and seconds_per_step >= 0
    if not is_time and not callable(seconds_per_step):
        found.append(f"seconds_per_step must be >= 0 or a function, got {seconds_per_step!r}")
    if type(workers) is not int or workers < 1:
        found.append(f"workers must be an int >= 1, got {workers!r}")
    return found
