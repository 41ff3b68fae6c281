"""Bugs to plant: each is a part that breaks one rule of the machine, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from dasktune._driver.attempts import AttemptLost, Attempts, Following
from dasktune._driver.history import History
from dasktune._driver.lease_messages import LeaseAnswered
from dasktune._driver.leases import Leasing
from dasktune._driver.orders import PendingOrders
from dasktune._driver.other_leases import Heeded, OtherLeases
from dasktune._driver.recorder import Recorder
from dasktune._driver.retention.evict import Evictor
from dasktune._driver.reuse import KnownStates
from dasktune._driver.shared_stages import SharedStages
from dasktune._engine.engine import Engine
from dasktune._engine.outcome import Order, Outcome, with_save_points
from dasktune._engine.session import Session
from dasktune._engine.trial_devices import TrialDevices
from dasktune._engine.tuner_records import LoggedRecord, read_record
from dasktune._worker.messages import StageMessage, StageProgress
from dasktune.graph.attempts import Attempt
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import (
    Evicted,
    Instruction,
    Omitted,
    Progress,
    Saved,
    StoreCrowded,
    TrainedElsewhere,
    WorkerLost,
)
from dasktune.graph.frontier import Frontier
from dasktune.graph.open_attempts import OpenAttempts
from dasktune.graph.placement import Placing
from dasktune.graph.plan import Node, NodeStep, SearchPlan
from dasktune.graph.policies import POLICIES
from dasktune.graph.policies.fair_share import OwnWorkers
from dasktune.graph.policies.numeric_classes import OneNumericClass
from dasktune.graph.policies.paused_workers import PausedWorkers
from dasktune.graph.policies.several_workers import SeveralWorkers
from dasktune.graph.policies.shared_devices import SharedDevices
from dasktune.graph.policies.unchecked_trainer import UncheckedTrainer
from dasktune.graph.policy import Policy
from dasktune.storage.database.kept_writes import KeptWrites
from dasktune.storage.leases import HeldLeases, Lease
from tests.torture.files import MemoryFiles
from tests.torture.parts import Parts


class _KeptAttempts(OpenAttempts):
    def release(self, attempt: Attempt) -> None:
        if attempt.ended and attempt.position == attempt.stop:
            super().release(attempt)


class KeepsAttempts(Dispatcher):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.open.__class__ = _KeptAttempts


class TellsTwice(Engine):
    def _tell(self, report: Any, now: float) -> None:
        super()._tell(report, now)
        trial = self.trials[report.trial]
        if trial.steps == report.step and trial.until is not None:
            trial.steps -= 1
            super()._tell(report, now)


class ForgetsRequests(Engine):
    def _ask_again(self, session: Session, now: float) -> None:
        for number in sorted(session.numbers.values()):
            self._make_known(session, self.trials[number])


class _UncountedRepeats(OpenAttempts):
    def close(self, attempt: Attempt) -> None:
        attempt.repeated = 0
        super().close(attempt)


class CountsNoRepeatedSteps(Dispatcher):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.open.__class__ = _UncountedRepeats


class _LossySplits(Frontier):
    def move(self, top: Node, bottom: Node) -> None:
        top.checkpoints.discard(top.stop)
        super().move(top, bottom)


class LosesCheckpointsInSplits(Dispatcher):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.frontier.__class__ = _LossySplits


class CountsLostWorkers(Attempts):
    """Keeps a lost attempt, and counts its late messages."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._lost: set[str] = set()

    def abandon(self, worker: str, now: float) -> list[Following]:
        following = super().abandon(worker, now)
        gone = {item.attempt for item in following if isinstance(item, AttemptLost)}
        self._lost |= gone & self._open.keys()
        return following

    def receive(self, message: StageMessage, now: float) -> list[Following]:
        if message.attempt in self._lost and isinstance(message, StageProgress):
            self._view._dispatcher.open.steps_executed += 1
        return super().receive(message, now)


class ResumesFromFirstSnapshot(History):
    def _last_records(self, place: int) -> list[LoggedRecord]:
        records = super()._last_records(place)
        snapshots = self.database.tuner_events(self.study_id, "snapshot")
        return [read_record(snapshots[0].payload), *records[1:]] if snapshots else records


class _UnknownStarts(OpenAttempts):
    @property
    def starts(self) -> Iterator[NodeStep]:
        return iter(())


class ProtectsNoStarts(Dispatcher):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.open.__class__ = _UnknownStarts


class StaysDrained(Dispatcher):
    def dismiss(self) -> None:
        before = self._draining
        super().dismiss()
        self._draining = before


class _DeafFrontier(Frontier):
    def state_arrived(self, node: Node) -> None:
        self.update(node)


class TellsNoChildren(Dispatcher):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.frontier.__class__ = _DeafFrontier


class SkipsUnrecordedStates(KnownStates):
    def _fill_step(self, plan: SearchPlan, node: Node, step: int, key: str) -> None:
        if key not in self._unrecorded:
            super()._fill_step(plan, node, step, key)


class ShiftsMetrics(Dispatcher):
    def _take_reports(self, node: Node, reports: Any) -> None:
        if len(reports) > 2:
            (first, _), (second, metrics), *rest = reports
            reports = ((first, metrics), (second, metrics), *rest)
        super()._take_reports(node, reports)


class _LongQueues(Placing):
    queue_length = 3

    def _continue_paths(self, now: float) -> None:
        while self.frontier.continued:
            attempt = self.attempts.get(self.frontier.continued.popleft())
            if attempt is not None and not attempt.ended:
                self._continue_with(self._next_of(attempt, now), attempt, now)


class QueuesThreeStages(Dispatcher):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.placing.__class__ = _LongQueues


class KeepsQueueOfLostWorker(Dispatcher):
    def _worker_lost(self, event: WorkerLost) -> None:
        self.placing.lose(event.worker)
        for attempt in [each for each in self.attempts.values() if each.worker == event.worker][:1]:
            self.open.close(attempt)
            self.open.release(attempt)


class BlamesNobody(Dispatcher):
    def _blame(self, attempt: Attempt, worker: str) -> None:
        return


class CountsSaveOneTooFar(Dispatcher):
    def _durable(self, event: Saved | Omitted) -> None:
        super()._durable(event)
        attempt = self.attempts.get(event.attempt)
        if attempt is not None and event.step < attempt.stop:
            attempt.saved += 1


class HoldsNoDecisions(Recorder):
    def outcome(self, outcome: Outcome) -> None:
        super().outcome(outcome)
        self.holds_decisions = False


class WritesTooLate(Recorder):
    """Leaves the last event of each batch for the next one."""

    def flush(self) -> None:
        held = self._batch.events[-1:]
        del self._batch.events[-1:]
        super().flush()
        self._batch.events += held


class GivesOrdersUnwritten(PendingOrders):
    def take(self, now: float) -> list[Order]:
        orders, self._orders = self._orders, []
        if not orders:
            super().take(now)
        return with_save_points(orders)


class CountsStepTooMany(Recorder):
    def ended(self, attempt: str, at: float, *, step: int, **options: Any) -> None:
        super().ended(attempt, at, step=step + 1, **options)


class EvictsNeededStates(Evictor):
    def _needed(self) -> Iterable[NodeStep]:
        return ()


class EvictsUntold(Evictor):
    def turn(self, now: float) -> list[Evicted | StoreCrowded]:
        return [event for event in super().turn(now) if isinstance(event, StoreCrowded)]


class EvictsUnwritten(Evictor):
    """Evicts states whose metrics are not durable yet."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{**options, "write_down": lambda: None})


class LooksAtNoLease(Leasing):
    def _decide(self, attempt: str, lease: Lease, heeded: Heeded) -> LeaseAnswered | None:
        self._others = OtherLeases(self.holder, self.study)
        return super()._decide(attempt, lease, heeded)


def _replace(part: object, **methods: Any) -> None:
    for name, method in methods.items():
        setattr(part, name, method)


def all_but(policy: type[Policy]) -> list[type[Policy]]:
    """Return the policies of a run from which one was removed."""
    return [each for each in POLICIES if each is not policy]


class ListsNoRanges(Leasing):
    """Writes a heartbeat that names no range of steps."""

    def _file(self, expires: float) -> HeldLeases:
        return replace(super()._file(expires), leases=())


class RenewsNothing(Leasing):
    def _must_write(self, held: HeldLeases, now: float) -> bool:
        return not self._written.expires or bool(self._asked)


class MeetsNobody(Leasing):
    """Waits for no other driver to see it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        _replace(self._others, may_answer=lambda now: True)


class HearsOfNoEnd(SharedStages):
    def _changed(self, attempt: str, lease: Lease) -> None:
        if not lease.is_done:
            super()._changed(attempt, lease)


class CountsOwnStepsOnly(SharedStages):
    """Takes no steps for repeated that another driver has trained."""

    def receive(self, news: Any, now: float) -> list[Any]:
        elsewhere = (Progress, TrainedElsewhere)
        return [item for item in super().receive(news, now) if not isinstance(item, elsewhere)]


class _PatientLease(Lease):
    def misses(self, step: int) -> bool:
        return False


class AwaitsMissedStates(SharedStages):
    """Waits for a driver that is past a step whose state it does not save."""

    def _looked_up(self, attempt: str, commits: Any) -> Any:
        waiting = self._waiting.get(attempt)
        if waiting is not None:
            content = {name: getattr(waiting.lease, name) for name in Lease.__dataclass_fields__}
            waiting.lease = _PatientLease(**content)
        return super()._looked_up(attempt, commits)


class ForgetsDeparted(Leasing):
    """Looks at no lease of a driver that has ended."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        _replace(self._others, _remember=lambda ended: None)


class RestoresNoWrites(KeptWrites):
    """Goes on after the database has lost what it had acknowledged."""

    def restore(self, connection: Any, *, is_new: bool) -> None:
        return


class RestoresNoTail(KeptWrites):
    """Writes only lost events again, not the rows that were written after the last event."""

    def restore(self, connection: Any, *, is_new: bool) -> None:
        super().restore(connection, is_new=False)


class CreatesOverOthers(MemoryFiles):
    """Creates a file although it exists: of two attempts, the last one makes the commit."""

    def create(self, path: str, content: bytes, *, durable: bool = True) -> bool:
        self.replace(path, content)
        return True


class BelievesOmitted(Dispatcher):
    """Takes a state that is not stored for one that is."""

    def _durable(self, event: Saved | Omitted) -> None:
        super()._durable(Saved(attempt=event.attempt, step=event.step, reports=event.reports))


class IgnoresNeeds(Dispatcher):
    """The feature removed: any worker may run any stage."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        _replace(self.placing.matching, may_run=lambda worker, wanted: True)


class CountsLostOffers(Dispatcher):
    """Keeps the answer which workers meet needs when a worker joins or goes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.placing.matching._able = _Kept()


class _Kept(dict[Any, Any]):
    def clear(self) -> None:
        return


class SharesDevicesUnasked(Dispatcher):
    """The feature removed: stages begin on all workers of a device at once."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options, policies=all_but(SharedDevices))


class KeepsDevicesOfLost(Dispatcher):
    """Takes a worker that is gone for one that still uses its device."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        _replace(self.placing.policy(SharedDevices), worker_gone=lambda worker: None)


class TrainsOnOneWorker(Dispatcher):
    """The feature removed: every stage takes one worker."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options, policies=all_but(SeveralWorkers))


class KeepsLenders(Dispatcher):
    """Gives lenders back to nobody."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        leave = self.placing.leave

        def keep(attempt: Attempt) -> None:
            lenders, attempt.lenders = attempt.lenders, ()
            leave(attempt)
            attempt.lenders = lenders

        _replace(self.placing, leave=keep)


class TellsOfNoLostLender(Dispatcher):
    def _without_lender(self, worker: str) -> list[Attempt]:
        return []


class ChoosesNoClass(Dispatcher):
    """The feature removed: trials are trained on workers of any numeric class."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options, policies=all_but(OneNumericClass))


class ForgetsClass(Dispatcher):
    """Chooses a class anew for a trial that has begun."""

    def register(self, *arguments: Any, **options: Any) -> list[Instruction]:
        return super().register(*arguments, **{**options, "numerics": None})


class TakesWorkersOfOthers(Dispatcher):
    """The feature removed: a study uses all workers, whoever has them."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options, policies=all_but(OwnWorkers))


class LeavesLentIdle(Dispatcher):
    """Notices no worker that it may use again, after a share or a pause has ended."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        placing = self.placing

        def drop_others() -> None:
            placing.reopen()
            for worker in placing.slots:
                if not placing.may_have_stages(worker):
                    placing.idle.pop(worker, None)

        _replace(placing, note_all_idle=drop_others)


class ResumesUnchecked(Dispatcher):
    """The feature removed: a stage loads a state before the check of the trainer has ended."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options, policies=all_but(UncheckedTrainer))


class UsesPausedWorkers(Dispatcher):
    """The feature removed: a worker that Dask has paused gets stages."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options, policies=all_but(PausedWorkers))


class LeavesStagesOnPaused(Attempts):
    """Waits for stages that a paused worker was sent and does not begin."""

    def take_back(self, resting: Any, *, now: float, at: float) -> list[Following]:
        return []


class LeavesMovedTrials(TrialDevices):
    def _go_on(self, session: Session, choices: Any, now: float) -> list[Instruction]:
        return []


class ForgetsMovedTrials(Engine):
    """Ends stages for other devices, and asks for no more of their trials."""

    def __init__(self, dispatcher: Dispatcher, **options: Any) -> None:
        super().__init__(dispatcher, **options)
        self.devices = LeavesMovedTrials(
            *(dispatcher, self._keeper, self._training, self._log),
            devices_of=options["devices_of"],
            scale=options["scale"],
        )


BUGS: dict[str, Parts] = {
    parts.bug: parts
    for parts in (
        Parts(bug="attempt-kept", dispatcher=KeepsAttempts),
        Parts(bug="report-told-twice", engine=TellsTwice),
        Parts(bug="requests-forgotten", engine=ForgetsRequests),
        Parts(bug="repeated-steps-not-counted", dispatcher=CountsNoRepeatedSteps),
        Parts(bug="checkpoints-lost-in-splits", dispatcher=LosesCheckpointsInSplits),
        Parts(bug="lost-workers-counted", attempts=CountsLostWorkers),
        Parts(bug="first-snapshot-taken", history=ResumesFromFirstSnapshot),
        Parts(bug="starts-evicted", dispatcher=ProtectsNoStarts),
        Parts(bug="dispatcher-stays-drained", dispatcher=StaysDrained),
        Parts(bug="children-not-told", dispatcher=TellsNoChildren),
        Parts(bug="unrecorded-states-skipped", known_states=SkipsUnrecordedStates),
        Parts(bug="metrics-shifted", dispatcher=ShiftsMetrics),
        Parts(bug="three-stages-queued", dispatcher=QueuesThreeStages),
        Parts(bug="queue-of-lost-worker-kept", dispatcher=KeepsQueueOfLostWorker),
        Parts(bug="nobody-blamed", dispatcher=BlamesNobody),
        Parts(bug="save-counted-too-far", dispatcher=CountsSaveOneTooFar),
        Parts(bug="no-decision-held", recorder=HoldsNoDecisions),
        Parts(bug="last-event-unwritten", recorder=WritesTooLate),
        Parts(bug="orders-unwritten", orders=GivesOrdersUnwritten),
        Parts(bug="stage-one-step-longer", recorder=CountsStepTooMany),
        Parts(bug="needed-states-evicted", evictor=EvictsNeededStates),
        Parts(bug="evictions-untold", evictor=EvictsUntold),
        Parts(bug="evicted-unwritten", evictor=EvictsUnwritten),
        Parts(bug="no-lease-looked-at", leasing=LooksAtNoLease),
        Parts(bug="heartbeat-without-ranges", leasing=ListsNoRanges),
        Parts(bug="nothing-renewed", leasing=RenewsNothing),
        Parts(bug="nobody-met", leasing=MeetsNobody),
        Parts(bug="no-end-received", sharing=HearsOfNoEnd),
        Parts(bug="own-steps-counted-only", sharing=CountsOwnStepsOnly),
        Parts(bug="missed-states-awaited", sharing=AwaitsMissedStates),
        Parts(bug="departed-leases-forgotten", leasing=ForgetsDeparted),
        Parts(bug="created-over-others", files=CreatesOverOthers),
        Parts(bug="no-lost-writes-restored", kept=RestoresNoWrites),
        Parts(bug="no-last-rows-restored", kept=RestoresNoTail),
        Parts(bug="omitted-states-believed", dispatcher=BelievesOmitted),
        Parts(bug="needs-ignored", dispatcher=IgnoresNeeds),
        Parts(bug="lost-offers-counted", dispatcher=CountsLostOffers),
        Parts(bug="devices-shared-unasked", dispatcher=SharesDevicesUnasked),
        Parts(bug="devices-of-lost-kept", dispatcher=KeepsDevicesOfLost),
        Parts(bug="one-worker-each", dispatcher=TrainsOnOneWorker),
        Parts(bug="lenders-kept", dispatcher=KeepsLenders),
        Parts(bug="no-lost-lender-told", dispatcher=TellsOfNoLostLender),
        Parts(bug="no-class-chosen", dispatcher=ChoosesNoClass),
        Parts(bug="class-forgotten", dispatcher=ForgetsClass),
        Parts(bug="workers-of-others-taken", dispatcher=TakesWorkersOfOthers),
        Parts(bug="lent-workers-left-idle", dispatcher=LeavesLentIdle),
        Parts(bug="paused-workers-used", dispatcher=UsesPausedWorkers),
        Parts(bug="resumes-unchecked", dispatcher=ResumesUnchecked),
        Parts(bug="stages-left-on-paused", attempts=LeavesStagesOnPaused),
        Parts(bug="moved-trials-forgotten", engine=ForgetsMovedTrials),
    )
}
"""Parts by the name of the bug that is planted in one of them."""
