"""The simulated runner: an engine on a virtual clock, with workers that only wait."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Literal

from dasktune._driver.predictions import answer_or_none
from dasktune._driver.waiting import unmet_needs, unmet_needs_text
from dasktune._engine.engine import Engine
from dasktune._engine.limits import Limits
from dasktune._engine.outcome import AskOrder, Order, Outcome, RunAssessment, RunPrediction
from dasktune._numbers import measured, not_measured
from dasktune.algos.base import Tuner
from dasktune.algos.curves.curve import Prediction, Question
from dasktune.errors import ClusterError, ConfigurationError, InternalError, shown
from dasktune.graph.devices import values_at, without_devices
from dasktune.graph.events import (
    Event,
    Progress,
    Reports,
    RunStage,
    Saved,
    SaveMissed,
    SavePoint,
    Started,
    StopStage,
    Tick,
    TrainingEnded,
    WorkerJoined,
    WorkersJoined,
)
from dasktune.needs import Amounts, Offer, unmet_text
from dasktune.simulate.budget import SimulatedBudget
from dasktune.simulate.incumbents import Incumbents
from dasktune.simulate.jobs import Held, Mishaps, SimulatedJob, Worker
from dasktune.simulate.pool import Values, offers_of
from dasktune.simulate.result import Happening
from dasktune.simulate.shared_pace import SharedDevice, SharedPace, Together, totals_of
from dasktune.traces.timing import Overheads, Pace
from dasktune.types import Extend, Sequences, Step

TICK_SECONDS = 1e-6
"""Delay of a tick after its due time, because sums of floats have rounding errors."""

HOPELESS = 1e-6
"""Jobs that end with a smaller probability than this would be repeated for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The simulated training.

    Parameters
    ----------
    curve
        Gives the metric after `step` steps, from the hyper-parameters at the last of them.
    pace
        Gives the pace of a stage from its sequences, first step and end, and its worker's class.
    report_every
        The metric is measured after every so many steps, and where a state is saved.
    resume
        Whether stages start from saved states.
    check
        Refuses hyper-parameters that a trace does not have.
    overheads
        Times beside the steps.
    prediction_seconds
        Seconds of a prediction, during which training goes on.
    answer
        Computes a prediction; if it raises, the tuner gets None.
    tells_progress
        Whether workers say how far they are, after 1, 2, 4, 8, ... steps of a stage, as real ones
        do; None if they do where there are several classes, whose speeds are learned from it.
    """

    curve: Callable[[Values, Step], float]
    pace: Callable[[Sequences, Step, Step, str], Pace]
    mishaps: Mishaps
    report_every: Step = 1
    resume: bool = True
    check: Callable[[Sequences], None] = lambda sequences: None
    overheads: Overheads = field(default_factory=Overheads)
    prediction_seconds: float = 0.0
    answer: Callable[[Question], Prediction] = Question.answer
    tells_progress: bool | None = None


class SimulatedRunner:
    """Runs an engine on simulated workers until its tuner has ended or a limit is reached.

    Parameters
    ----------
    engine
        The engine; its tuner must be the first of the study.
    workers
        Number of workers, or their numbers by class.
    offers
        The amounts and tags of the workers of a class, by class.
    together
        See `Together`: then each of `workers` is a device of several workers.
    """

    def __init__(
        self,
        engine: Engine,
        conditions: Conditions,
        *,
        workers: int | Mapping[str, int],
        limits: Limits,
        offers: Mapping[str, Amounts] | None = None,
        together: Together | None = None,
    ) -> None:
        self.engine = engine
        self.now = 0.0
        self.limit: str | None = None
        self.steps_again = 0
        self.happenings: list[Happening] = []
        self.completed: list[float] = []
        self.incumbents = Incumbents(engine.objective)
        self.budget = SimulatedBudget(limits, engine.objective)
        self._conditions = conditions
        self._metric = engine.objective.metrics[0]
        self._workers = dict(_workers(offers_of(workers, offers), together))
        self.busy_seconds = {worker.kind: 0.0 for worker in self._workers.values()}
        tells = conditions.tells_progress
        self._tells_progress = len(self.busy_seconds) > 1 if tells is None else tells
        self._due: list[tuple[float, int, Worker, SimulatedJob, Step | None, int]] = []
        self._answers: list[tuple[float, int, AskOrder]] = []
        self._durable: list[tuple[float, int, Saved]] = []
        self._count = 0
        self._turn = 0
        self._ticked = -1
        self._asked: dict[int, int] = {}
        self._cancelled: dict[str, Step] = {}
        self._extra: dict[str, set[Step]] = {}

    def run(self, tuner: Tuner) -> None:
        """Run a tuner from its first call to its end, or to a limit."""
        self.begin(tuner)
        while not self.has_ended:
            at = self.next_at()
            if at is None:
                if self.engine.finished:
                    break
                self._refuse_unmet()
                raise InternalError("the tuner has not ended, and nothing is running")
            if self.advance(at):
                self._cut()
                break

    def begin(self, tuner: Tuner) -> None:
        """Begin a tuner, and make the workers known."""
        workers = len(self._workers)
        self._carry_out(self.engine.begin(tuner, place=0, capacity=workers, now=self.now))
        self._refuse_unmet()
        self.now = self._conditions.overheads.begin
        self.tell(WorkersJoined(workers=tuple(map(_joined, self._workers.values()))))

    def _refuse_unmet(self) -> None:
        """Refuse needs that no worker meets, of all stages or of single trials."""
        offers, needs = [worker.offer for worker in self._workers.values()], self.engine.view.needs
        if not any(map(needs.fits, offers)):
            raise ClusterError(unmet_text(needs, offers))
        if unmet := unmet_needs(self.engine, offers):
            raise ClusterError(unmet_needs_text(unmet, offers))

    @property
    def has_ended(self) -> bool:
        """Whether the tuner has ended, and nothing trains."""
        return self.engine.finished and self.engine.view.is_idle

    # --------------------------------------------------------------------- the clock

    def _ask_for_more(self) -> None:
        capacity = self.engine.view.capacity(self.now)
        if capacity and not self.engine.finished:
            self._turn += 1
            self._carry_out(self.engine.ask(capacity, self.now))

    def next_at(self) -> float | None:
        """Ask the tuner for more if workers are idle; return the time of the next event, or None.

        It is None while nothing trains.
        """
        self._ask_for_more()
        if self.engine.finished:
            self._answers.clear()
        times = [heap[0][0] for heap in (self._due, self._answers, self._durable) if heap]
        if self.engine.due is not None:
            times.append(max(self.now, self.engine.due))
        tick = self.engine.next_tick(self.now)
        if tick is not None and self._ticked < self._turn:
            times.append(max(self.now, tick) + TICK_SECONDS)
        return min(times, default=None)

    def _is_spent(self, at: float) -> bool:
        """Go to the moment at which a limit is reached, if it is before the next event."""
        if self.engine.finished:
            return False
        spent = self.budget.spent_before(at, self.now)
        if spent is not None:
            self.now, self.limit = spent
        return spent is not None

    def advance(self, at: float) -> bool:
        """Go to the next event, at a time; return whether a limit is reached by then."""
        return self._is_spent(at) or self._handle_next(at)

    def _handle_next(self, at: float) -> bool:
        """Handle the next event; return whether it reaches the target."""
        if self._durable and self._durable[0][0] <= at:
            self.now, _, event = heappop(self._durable)
            self.tell(event)
            return False
        if self._answers and self._answers[0][0] <= at:
            self._answer(heappop(self._answers))
            return False
        if not self._due or self._due[0][0] > at:
            self.now = at
            self.tell(Tick())
            self._ticked = self._turn
            return False
        at, _, worker, job, step, version = heappop(self._due)
        if job.version != version:
            return False
        self.now = at
        if step is None:
            self._drop(worker, job)
            return False
        best = self._learn(job, step)
        if step == job.stop or step in job.saves:
            self._arrive(worker, job, step)
        else:
            self._schedule(worker, job)
            self._say_progress(job, step)
        self.limit = None if self.engine.finished else self.budget.met(best)
        return self.limit is not None

    def _answer(self, due: tuple[float, int, AskOrder]) -> None:
        self.now, _, order = due
        self._turn += 1
        prediction = answer_or_none(order, self._conditions.answer)
        self._carry_out(self.engine.predicted(order.subject, prediction, self.now))

    def _cut(self) -> None:
        """End all jobs, saved at their last complete steps, without an event for the tuner."""
        durable = [event for _, _, event in sorted(self._durable)]
        for worker in self._workers.values():
            job = worker.job
            if job is None:
                continue
            step = max(job.known, job.position(self.now))
            self._learn(job, step)
            if step > job.saved:
                self._note("saved", worker, step, job.order)
                reports = self._reports(job, step)
                attempt = job.order.attempt
                durable.append(Saved(attempt=attempt, step=step, reports=reports))
            self._leave(worker, job, "ended")
        self.engine.dismiss(durable, self.now)

    # --------------------------------------------------------------------------- jobs

    def _arrive(self, worker: Worker, job: SimulatedJob, step: Step) -> None:
        """Save a state; at the end of a job begin the next job."""
        order = job.order
        self._note("saved", worker, step, order)
        ended = step == job.stop
        if ended:
            self._leave(worker, job, "ended")
            worker.held = Held.after(order.node, step, self._turn)
        else:
            self._schedule(worker, job)
        self._say_durable(job, step)
        if ended:
            self._end(job, step, "trained" if step == order.stop else "stopped")
            self._start_next(worker)

    def _say_progress(self, job: SimulatedJob, step: Step) -> None:
        """Report how far a job is, for its speed to be measured early."""
        if self._tells_progress:
            attempt, start = job.order.attempt, job.order.start
            seconds = job.pace.between(start, step)
            self.tell(Progress(attempt=attempt, step=step, seconds=seconds))

    def _say_durable(self, job: SimulatedJob, step: Step) -> None:
        """Report that a state is durable, now or as soon as it is."""
        event = Saved(attempt=job.order.attempt, step=step, reports=self._reports(job, step))
        at = job.time_of(step) + self._conditions.overheads.report
        if at <= self.now:
            self.tell(event)
        else:
            self._count += 1
            heappush(self._durable, (at, self._count, event))

    def _drop(self, worker: Worker, job: SimulatedJob) -> None:
        """End a job without a result; skip the stages that continue it."""
        step = max(job.known, job.position(self.now))
        self._learn(job, step)
        self._leave(worker, job, "dropped")
        waiting = list(worker.queue)
        worker.queue.clear()
        self._end(job, step, "lost")
        for order in waiting:
            if order.after == job.order.attempt:
                self.tell(TrainingEnded(attempt=order.attempt, step=order.start, status="skipped"))
            else:
                worker.queue.append(order)
        self._start_next(worker)

    def _leave(self, worker: Worker, job: SimulatedJob, kind: str) -> None:
        """Free a worker from its job, and count the job."""
        steps = job.steps_by(self.now)
        self._note(kind, worker, max(job.order.start, job.first + steps), job.order)
        self.steps_again += min(steps, job.order.start - job.first)
        self.budget.end(job, self.now)
        self.busy_seconds[worker.kind] += job.workers * (self.now - job.launched)
        self.incumbents.end(job, steps, self.now)
        self._extra.pop(job.order.attempt, None)
        worker.job, worker.held = None, None
        for lender in job.order.lenders:
            self._workers[lender].lent_to = None
        if worker.device is not None:
            worker.device.end(worker.name, self.now)
            self._replan_beside(worker)

    def _replan_beside(self, worker: Worker) -> None:
        """Schedule the jobs anew that run beside a worker's on its device."""
        for name in () if worker.device is None else worker.device.running:
            other = self._workers[name]
            if other is not worker and other.job is not None:
                self._replan(other, other.job)

    def _end(
        self, job: SimulatedJob, step: Step, status: Literal["trained", "stopped", "lost"]
    ) -> None:
        seconds = job.pace.between(job.order.start, step)
        load = job.lead - self._conditions.overheads.handover if job.first else 0.0
        event = TrainingEnded(
            attempt=job.order.attempt,
            step=step,
            status=status,
            seconds=seconds,
            load_seconds=load,
            peak_bytes=1,  # there is room for all
        )
        self.tell(event)

    def _start_next(self, worker: Worker) -> None:
        while worker.queue and worker.job is None:
            order = worker.queue.popleft()
            attempt = order.attempt
            stop = min(order.stop, self._cancelled.pop(attempt, order.stop))
            if stop <= order.start < order.stop:
                self.tell(TrainingEnded(attempt=attempt, step=order.start, status="stopped"))
                continue
            self._launch(worker, order, stop)
            self.tell(Started(attempt=attempt))

    def _launch(self, worker: Worker, order: RunStage, stop: Step) -> None:
        conditions, sequences = self._conditions, order.node.sequences
        conditions.check(without_devices(sequences))
        is_held = conditions.resume or self._goes_on(worker, order)
        first = order.start if is_held else 0
        pace = conditions.pace(sequences, order.start, order.stop, worker.kind)
        seconds = pace.between(first, stop)
        self._refuse_hopeless(seconds)
        factor, dropped = conditions.mishaps.draw(seconds)
        pace, lead = pace.slower(factor), self._lead(worker, order, first)
        if worker.device is not None:
            pace = SharedPace(pace, first, 1.0)
        job = SimulatedJob(
            order=order,
            first=first,
            launched=self.now,
            pace=pace,
            stop=stop,
            saves=tuple({*order.saves, *self._extra.pop(order.attempt, ())}),
            lead=lead,
            save=conditions.overheads.save,
            dropped=self.now + dropped,
            known=order.start,
            saved=order.start,
        )
        self._borrow(worker, job)
        worker.job, worker.held = job, None
        self.budget.begin(job)
        self.incumbents.begin(job)
        self._note("started", worker, order.start, order)
        if worker.device is not None and isinstance(pace, SharedPace):
            worker.device.begin(worker.name, pace, self.now + lead, self.now)
            self._replan_beside(worker)
        self._schedule(worker, job)

    def _borrow(self, worker: Worker, job: SimulatedJob) -> None:
        """Lend workers to a job, which must have nothing else to do."""
        lenders = [self._workers[lender] for lender in job.order.lenders]
        for each in (worker, *lenders):
            is_free = each.job is None and each.lent_to is None
            if not is_free or (each is not worker and each.queue):
                raise InternalError(f"{each.name} has something else to do than {job.order}")
        for lender in lenders:
            lender.lent_to, lender.held = job, None

    def _lead(self, worker: Worker, order: RunStage, first: Step) -> float:
        """Return the seconds until the first step of a stage begins."""
        overheads = self._conditions.overheads
        if first == 0:
            return overheads.handover + overheads.build
        return overheads.handover + (0.0 if _is_held(worker, order) else overheads.load)

    def _goes_on(self, worker: Worker, order: RunStage) -> bool:
        """Whether a stage continues its worker's last job for a trial that had asked by its end."""
        held = worker.held
        if held is None or not _is_held(worker, order):
            return False
        waiting = (trial for node in order.node.below() for trial in node.requests)
        return any(self._asked[trial] <= held.turn for trial in waiting)

    def _refuse_hopeless(self, seconds: float) -> None:
        mishaps = self._conditions.mishaps
        if mishaps.survival(seconds) < HOPELESS and not self.budget.bounds_time:
            raise ConfigurationError(
                f"drop must leave jobs a chance unless limits bound the time, got {mishaps.drop}: "
                f"a job of {seconds:g} s ends with probability {mishaps.survival(seconds):.2g}"
            )

    def _schedule(self, worker: Worker, job: SimulatedJob) -> None:
        """Schedule the next event of a job."""
        step = self._next_step(job)
        at = job.due(step)
        is_drop = job.dropped < at
        self._count += 1
        entry = (min(at, job.dropped), self._count, worker, job, None if is_drop else step)
        heappush(self._due, (*entry, job.version))

    def _next_step(self, job: SimulatedJob) -> Step:
        """Return the next step of a job that is saved or reported, or reaches the target."""
        save = job.next_save(job.known)
        if self._tells_progress:
            save = min(save, job.next_progress(job.known))
        if self.budget.wanted is not None:
            for step in self._measured(job.known, save):
                if self.budget.is_target(self.incumbents.loss_of(self._value(job, step))):
                    return step
        return save

    def _replan(self, worker: Worker, job: SimulatedJob) -> None:
        job.version += 1
        self._schedule(worker, job)

    # ------------------------------------------------------------------------ the metric

    def _measured(self, low: Step, high: Step) -> Iterator[Step]:
        """Yield the steps after `low` up to `high` at which the metric is measured."""
        every = self._conditions.report_every
        yield from range((low // every + 1) * every, high + 1, every)

    def _learn(self, job: SimulatedJob, step: Step) -> float:
        """Look up the values up to a step; return the best loss among them."""
        steps = dict.fromkeys(self._measured(job.known, step))
        if step == job.stop or step in job.saves:
            steps[step] = None
        values = {at: self._value(job, at) for at in steps if at > job.known}
        job.known = step
        self.incumbents.take(job, values)
        return min(map(self.incumbents.loss_of, values.values()), default=math.inf)

    def _reports(self, job: SimulatedJob, step: Step) -> Reports:
        """Return the reports since the last saved state, which the state at `step` saves."""
        job.saved = step
        known = sorted(at for at in job.values if at <= step)
        return tuple((at, {self._metric: job.values.pop(at)}) for at in known)

    def _value(self, job: SimulatedJob, step: Step) -> float:
        value = job.values.get(step)
        if value is None:
            values = values_at(job.order.node.sequences, step - 1)
            given = self._conditions.curve(values, step)
            value = measured(given)
            if value is None:
                raise ConfigurationError(
                    f"curves must return a {not_measured(given)} ({type(given).__name__}) for "
                    f"{shown(values)} at step {step}"
                )
            job.values[step] = value
        return value

    # ------------------------------------------------------------------------- the engine

    def tell(self, event: Event) -> None:
        """Handle an event now."""
        self._turn += 1
        self._carry_out(self.engine.handle(event, self.now))

    def _carry_out(self, outcome: Outcome) -> None:
        outcome.refuse()
        for report in outcome.reports:
            if report.step >= self.engine.trials[report.trial].max_steps:
                self.completed.append(self.now)
        if not self._conditions.resume:
            self._asked |= dict.fromkeys(_extended(outcome), self._turn)
        for order in outcome.orders:
            self._obey(order)

    def _obey(self, order: Order) -> None:
        if isinstance(order, RunPrediction | RunAssessment):
            self._count += 1
            at = self.now + self._conditions.prediction_seconds
            heappush(self._answers, (at, self._count, order))
            return
        worker = self._workers[order.worker]
        match order:
            case RunStage():
                worker.queue.append(order)
                if worker.job is None:
                    self._start_next(worker)
            case SavePoint():
                self._save_point(worker, order)
            case StopStage():
                self._stop(worker, order)

    def _save_point(self, worker: Worker, order: SavePoint) -> None:
        job = worker.job
        if job is None or job.order.attempt != order.attempt:
            self._extra.setdefault(order.attempt, set()).add(order.step)
        elif job.time_of(order.step) <= self.now:
            self.tell(SaveMissed(attempt=order.attempt, step=order.step))
        else:
            job.saves = tuple({*job.saves, order.step})
            self._replan(worker, job)

    def _stop(self, worker: Worker, order: StopStage) -> None:
        job = worker.job
        if job is None or job.order.attempt != order.attempt:
            self._cancelled[order.attempt] = 0 if order.at is None else order.at
            return
        reached = job.brings(self.now)
        job.stop = min(job.stop, reached if order.at is None else max(order.at, reached))
        self._replan(worker, job)

    def _note(self, kind: str, worker: Worker, step: Step, order: RunStage) -> None:
        self.happenings.append(
            Happening(at=self.now, kind=kind, worker=worker.name, attempt=order.attempt, step=step)
        )


def _joined(worker: Worker) -> WorkerJoined:
    offer = worker.offer
    amounts = dict(offer.amounts)
    return WorkerJoined(
        worker=worker.name,
        kind=offer.kind,
        resources=amounts,
        tags=offer.tags,
        device="" if worker.device is None else worker.device.name,
        device_bytes=2**40,
    )


def _workers(offers: Iterable[Offer], together: Together | None) -> Iterator[tuple[str, Worker]]:
    """Yield the workers of each device, by name: one of each that is not shared."""
    number = 0
    for index, offer in enumerate(offers):
        total = totals_of(together, offer.kind)
        device = SharedDevice(f"d{index}", total) if len(total) > 1 else None
        for _ in total:
            name = f"w{number}"
            yield name, Worker(name, offer, device)
            number += 1


def _is_held(worker: Worker, order: RunStage) -> bool:
    """Whether a worker has the state that a stage starts from."""
    held = worker.held
    return held is not None and held.step == order.start and held.node in order.node.up()


def _extended(outcome: Outcome) -> Iterator[int]:
    """Yield the trials that the tuner extended; the first tuner's numbers are the study's."""
    for record in outcome.records:
        for decision in record.decisions:
            if isinstance(decision, Extend):
                yield decision.trial
