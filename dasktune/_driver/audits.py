"""The audits of a run: sent to workers, and what they found.

`dasktune.graph.audits` draws them. An audit goes to an idle worker; if there is none, to one that
runs it before its next stage, which waits no longer than the audit takes. One whose worker leaves
or is lost is dropped, and so are all when the run ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from dasktune._driver.audit_notes import (
    AUDIT_FAILED,
    RESUMES,
    AuditDifferenceError,
    AuditFailure,
    named,
)
from dasktune._driver.history import AUDITED
from dasktune._driver.parts import Draining, Following, Launched, News, Part
from dasktune._engine.timeouts import RESULT_SECONDS
from dasktune._worker.job import AuditSpec, StageSpec
from dasktune._worker.messages import (
    AuditEnded,
    LeaveAnnounced,
    MessageError,
    StageEnded,
    StateOmitted,
    StateSaved,
    audit_from_wire,
)
from dasktune.errors import InternalError, StorageError, TrainerError
from dasktune.graph.audits import (
    Audit,
    AuditDraw,
    Stretch,
    measured_on,
    resting_on,
    splits_of,
    stored_on,
)
from dasktune.graph.events import AuditsRun, RunStage
from dasktune.graph.plan import Node
from dasktune.graph.view import RunView, SlotView

if TYPE_CHECKING:
    from distributed import Future

logger = logging.getLogger(__name__)

INCOMPARABLE = (
    "computes other bits than the one that trained, with a resume and without: its audit says "
    "nothing about the trainer"
)

MOST_LOST = 2
"""Lost workers with an audit, after which a run begins no more audits: these may be the reason."""


class AuditCluster(Protocol):
    """The workers, as audits have them."""

    @property
    def resting(self) -> Collection[str]:
        """The workers that Dask has paused and that execute nothing."""

    def audit(
        self, worker: str, spec: AuditSpec, needs: Mapping[str, float]
    ) -> Future[dict[str, Any]]:
        """Send an audit to a worker; return its receipt, as a future."""


class NoAudits(Part):
    """A run without audits."""

    is_under_way = False
    """Whether an audit runs."""

    def use(self, cluster: AuditCluster, wake: Callable[[], None]) -> None:
        """Do nothing."""

    def lose(self, worker: str) -> bool:
        """Return False: there was no audit."""
        return False

    def finish(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    """An audit on a worker, and on those that are lent to it."""

    key: str
    audit: Audit
    workers: Sequence[str]
    future: Future[dict[str, Any]]


class Audits(Part):
    """The audits of one run; `use` must come before the first turn.

    `note` adds a note of a kind to the study; `fail` records that the trainer does not resume
    exactly, for all studies.
    """

    def __init__(
        self,
        draw: AuditDraw,
        view: RunView,
        *,
        run: str,
        trainer: str,
        seed: int,
        note: Callable[..., None],
        fail: Callable[[AuditFailure], None],
    ) -> None:
        self._draw, self._view = draw, view
        self._run, self._trainer, self._seed = run, trainer, seed
        self._note, self._fail = note, fail
        self._steps_before = view.steps_executed
        self._running: dict[str, _Running] = {}
        self._leaving: set[str] = set()
        self._sent = 0
        self._dropped = 0
        self._lost = 0
        self.is_last = False
        """Whether all else is trained: only the audits are left that a study always has."""
        self._is_closed = False
        self._cluster: AuditCluster | None = None
        self._wake: Callable[[], None] = lambda: None
        self._shown: dict[str, Node] = {}
        """The nodes that the engine knows to be trained again."""

    def use(self, cluster: AuditCluster, wake: Callable[[], None]) -> None:
        """Send audits to these workers; `wake` begins a turn, and is called from any thread."""
        self._cluster, self._wake = cluster, wake

    def finish(self) -> None:
        """Begin only those audits from now on that a study always has: all else is trained."""
        self.is_last = True

    @property
    def is_under_way(self) -> bool:
        """Whether an audit runs."""
        return bool(self._running)

    @property
    def nodes(self) -> dict[str, Node]:
        """The node that each audit under way trains again, by worker."""
        running = self._running.values()
        return {worker: each.audit.way.node for each in running for worker in each.workers}

    def launched(self, order: RunStage) -> None:
        """Note a stage that was sent to its worker."""
        if order.start < order.stop:
            self._draw.launched(order.attempt, order.node, order.start)

    def receive(self, news: News, now: float) -> Iterable[Following]:
        """Note what is sent to workers, and what they say of stages and of their end."""
        match news:
            case Launched(order=order):
                self.launched(order)
            case LeaveAnnounced(worker=worker):
                self.leave(worker)
            case Draining():
                self.close()
            case StateSaved(attempt=attempt):
                if news.by == attempt:
                    self._draw.saved(attempt)
                else:
                    self._draw.lost(attempt)
            case StateOmitted(attempt=attempt):
                self._draw.saved(attempt)  # there are metrics to compare
            case StageEnded(attempt=attempt, status="trained" | "stopped"):
                if news.loaded_at is not None:
                    seconds = news.seconds + news.evaluate_seconds
                    self._draw.ended(attempt, news.step, loaded_at=news.loaded_at, seconds=seconds)
            case StageEnded(attempt=attempt):
                self._draw.lost(attempt)
            case _:
                pass
        return ()

    def leave(self, worker: str) -> None:
        """Drop the audit of a worker that will be gone soon."""
        self._leaving.add(worker)
        self._cancel(self._running_on({worker}))

    def lose(self, worker: str) -> bool:
        """Drop the audit of a worker that is gone; return whether there was one.

        It may be the reason. It may have begun in the moment in which the end of the stage before
        was on its way to the driver. So no stage is blamed, and there are at most `MOST_LOST`.
        """
        self._leaving.discard(worker)
        audits = self._running_on({worker})
        self._cancel(audits)
        self._lost += len(audits)
        if audits:
            more = "; this run begins no more audits" if self._lost == MOST_LOST else ""
            logger.warning("worker %s was lost with an audit, which is given up%s", worker, more)
        return bool(audits)

    def turn(self, now: float) -> list[Following]:
        """Take results and begin the next audit; return the nodes under audit if they changed.

        After `finish` the audits on workers that execute nothing are given up. Raises an
        `AuditDifferenceError` after a difference is recorded.
        """
        for name, running in list(self._running.items()):
            if running.future.done():
                del self._running[name]
                self._take(running, _receipt_of(running.future))
        if self.is_last and self._cluster is not None:
            self._give_up(self._cluster.resting)
        is_wanted = self._draw.waiting and (self._draw.is_first or not self.is_last)
        if is_wanted and not self._is_closed and self._lost < MOST_LOST:
            self._begin()
        if self._shown == self.nodes:
            return []
        self._shown = self.nodes
        self._wake()  # stages may begin now
        return [AuditsRun(nodes=self._shown)]

    def close(self) -> None:
        """Drop what runs; write down how many stages resumed, and how many audits did not run."""
        if self._is_closed:
            return
        self._is_closed = True
        self._cancel(self._running.values())
        counts, not_run = self._draw.counts, self._draw.waiting + self._dropped
        if counts.resumes:
            with suppress(StorageError):  # another error may be why the run ends
                self._note(RESUMES, run=self._run, resumes=counts.resumes, not_run=not_run)

    def _give_up(self, resting: Collection[str]) -> None:
        """Drop the audits on workers that begin nothing: nobody knows when they will."""
        for running in self._running_on(resting):
            logger.warning("worker %s is paused: its audit is given up", running.workers[0])
            self._cancel([running])

    def _begin(self) -> None:
        """Send the best audit for which there are workers, if there is any."""
        slots = self._free_slots()
        if not slots:
            return
        trained, count = self._view.steps_executed - self._steps_before, len(self._view.slots)
        possible = self._draw.possible(trained, workers=count, is_last=self.is_last)
        for key, audit in possible:
            if workers := self._workers(audit, slots):
                self._send(key, audit, workers)
                return

    def _send(self, key: str, audit: Audit, workers: Sequence[str]) -> None:
        cluster, wake = self._cluster, self._wake
        if cluster is None:
            raise InternalError("audits must know the cluster before their first turn")
        self._draw.begin(key, audit)
        self._sent += 1
        name, (worker, *lenders), node = f"audit-{self._sent}-{key}", workers, audit.way.node
        seed = self._seed + self._view.plan.seed_of(node)
        spec = spec_of(name, audit, seed, tuple(lenders))
        future = cluster.audit(worker, spec, self._view.claims(worker, node))
        future.add_done_callback(lambda _: wake())
        self._running[name] = _Running(key=key, audit=audit, workers=workers, future=future)

    def _count(self, audit: Audit) -> int:
        """Return how many workers an audit takes: as many as the stages that it trains again."""
        way = audit.way
        first = min((way.start, *audit.origins))
        return max(self._view.workers_of(node) for node in way.node.up() if node.stop > first)

    def _workers(self, audit: Audit, slots: Iterable[SlotView]) -> list[str]:
        """Return the workers for an audit: several are idle ones of one class, or there are none.

        A lender that gets a stage needs its device, and the audit is dropped. So it is not worth to
        begin one where stages wait.
        """
        able = [slot for slot in slots if self._view.may_run(slot.worker, audit.way.node)]
        count = self._count(audit)
        if count == 1:
            return [slot.worker for slot in able[:1]]
        idle: dict[str, list[str]] = {}
        for slot in able:
            if not slot.queue:
                idle.setdefault(slot.kind, []).append(slot.worker)
        return next((each[:count] for each in idle.values() if len(each) >= count), [])

    def _free_slots(self) -> list[SlotView]:
        """Return the slots that could have an audit, those with the least to do first."""
        taken = {*self.nodes} | self._leaving
        taken |= {aside.worker for aside in self._view.aside}
        taken |= {*self._view.paused, *self._view.withheld}
        taken |= {*self._view.beside}  # where memory may have no room for two
        slots = [slot for worker, slot in self._view.slots.items() if worker not in taken]
        return sorted(slots, key=lambda slot: len(slot.queue))

    def _take(self, running: _Running, receipt: AuditEnded | None) -> None:
        """Write down what an audit found; a difference is raised."""
        status = "dropped" if receipt is None else receipt.status
        steps = 0 if receipt is None else receipt.steps
        seconds = 0.0 if receipt is None else receipt.seconds
        is_compared = receipt is not None and receipt.compared > 0
        if status == "identical" and not is_compared:
            status = "missing"  # evicted meanwhile
        has_result = status in ("identical", "differs")
        spent = seconds * len(running.workers)
        self._draw.end(running.key, steps, has_result=has_result, seconds=spent)
        way = running.audit.way
        self._dropped += not has_result and status != "incomparable"
        logger.info(
            "audit of the resume at step %d, steps %d to %d trained again: %s",
            *(running.audit.resume.step, way.start, way.stop, status),
        )
        if receipt is not None and status == "failed":
            logger.warning("an audit could not be done: %s", receipt.message)
        if receipt is not None and status == "incomparable":
            path, reason = receipt.differences[0]
            logger.warning("worker %s %s: %s: %s", running.workers[0], INCOMPARABLE, path, reason)
        text, resting = "", {}
        if receipt is not None and status == "differs":
            resume = running.audit.resume
            trials = resting_on(self._view.plan, resume)
            text = failure_text(running.audit, receipt, trials)
            resting = {"trials": trials, "after": resume.step}
        problem = f"{self._trainer} must resume exactly for its trials to be merged"
        try:
            cost = {"steps": steps, "seconds": seconds}
            self._note(AUDITED, run=self._run, audit=status, text=text, **cost, **resting)
            if text:
                self._fail(AuditFailure(text=text, steps=steps))
        except StorageError as error:
            if not text:
                raise
            # It is written down nowhere else; and no run may go on from what is not recorded.
            raise TrainerError(f"{problem}. {text}") from error
        if text:
            raise AuditDifferenceError(f"{problem}. {text}")

    def _running_on(self, workers: Collection[str]) -> list[_Running]:
        running = self._running.values()
        return [each for each in running if not {*each.workers}.isdisjoint(workers)]

    def _cancel(self, audits: Iterable[_Running]) -> None:
        for running in list(audits):
            name = next(each for each, other in self._running.items() if other is running)
            del self._running[name]
            with suppress(Exception):  # its scheduler may be gone at this moment
                running.future.cancel()
            self._draw.end(running.key, 0, has_result=False)
            self._dropped += 1


def spec_of(name: str, audit: Audit, seed: int, lenders: tuple[str, ...] = ()) -> AuditSpec:
    """Return an audit as a worker gets it; its name is unique among all attempts of the run."""
    way, node = audit.way, audit.way.node
    before = Stretch(node=node, start=min(audit.origins), stop=way.start)
    chain = node.chain_at(way.start)
    return AuditSpec(
        stage=StageSpec(
            attempt=name,
            start=way.start,
            stop=way.stop,
            saves=(),
            sequences={each: sequence.to_json() for each, sequence in node.sequences.items()},
            chain=(chain.base, chain.values.hex(), chain.length),
            seed=seed,
            lenders=lenders,
        ),
        metrics={step: node.holder(step).metrics[step] for step in measured_on(way)},
        states={step: node.key_at(step) for step in stored_on(way)},
        origins={step: node.key_at(step) for step in audit.origins},
        splits=tuple(splits_of(audit)),
        measured=tuple(measured_on(before)),
    )


def failure_text(audit: Audit, receipt: AuditEnded, trials: list[int]) -> str:
    """Return in words what an audit found, and the trials that go through the resumed stage."""
    start, resumed = audit.way.start, audit.resume.step
    began = f"the stored state after step {start}" if start else "the beginning"
    return "\n".join(
        [
            f"{AUDIT_FAILED}: steps {start + 1} to {receipt.step}, trained again from {began}, are "
            "not what is stored",
            *(f"- {path}: {reason}" for path, reason in receipt.differences),
            f"what rests on the state after step {resumed}, from which a stage resumed: "
            f"{named(trials)}",
        ]
    )


def _receipt_of(future: Future[dict[str, Any]]) -> AuditEnded | None:
    """Return the receipt of an audit that Dask is done with; None if it was lost."""
    if future.status != "finished":
        return None
    try:
        return audit_from_wire(future.result(timeout=RESULT_SECONDS))
    except (OSError, TimeoutError, CancelledError):
        return None
    except MessageError as error:
        logger.warning("the receipt of an audit is refused: %s", error)
        return None
