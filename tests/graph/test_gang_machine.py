"""The dispatcher's state machine with stages that several workers train together."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
from hypothesis.stateful import invariant, precondition, rule

from dasktune.graph.devices import Periods, devices_at, with_devices
from dasktune.graph.events import Event, RunStage, Tick, TrainingEnded, WorkerLost
from dasktune.graph.plan import Node
from dasktune.graph.policies.several_workers import SeveralWorkers
from dasktune.graph.view import RunView
from dasktune.sequences import Sequence
from dasktune.types import Sequences, Step
from tests.graph.test_machine import HORIZON, OF_VARIANTS, DispatcherMachine, Worker

MOST = 3
"""Most workers of one stage."""

PERIODS = st.lists(
    st.tuples(st.integers(1, HORIZON - 1), st.integers(1, MOST)), max_size=3
).flatmap(
    lambda later: st.integers(1, MOST).map(lambda first: ((0, first), *sorted(dict(later).items())))
)


class GangMachine(DispatcherMachine):
    """Trials change the number of their devices, each of which is that of a worker."""

    def __init__(self) -> None:
        super().__init__()
        self.periods: Periods = ((0, 1), (3, 2), (6, 1), (8, 3))

    @rule(periods=PERIODS)
    def scale(self, periods: Periods) -> None:
        """Set the devices of the trials that come."""
        self.periods = periods

    def sequences_with(self, lr: Sequence) -> Sequences:
        return with_devices({"lr": lr}, self.periods)

    @precondition(lambda self: self.asked and self.merge and not self.is_alone)
    @rule(data=st.data(), periods=PERIODS)
    def rescale(self, data: st.DataObject, periods: Periods) -> None:
        """Give a trial that waits other devices, and ask for the same steps."""
        trial = data.draw(st.sampled_from(sorted(self.asked)))
        *reports, until = self.asked[trial]
        self.stop_asking(trial)
        lr = self.trials[trial]["lr"]
        self.dispatcher.plan.remove(trial)
        self.trials[trial] = with_devices({"lr": lr}, periods)
        self.carry_out(self.dispatcher.register(trial, self.trials[trial], until))
        self.ask_for(trial, until, 0.0, reports)

    def stop_asking(self, trial: int) -> None:
        del self.asked[trial]
        self.carry_out(self.dispatcher.stop(trial, self.now))

    # ------------------------------------------------------------------------ workers

    def work(self, worker: Worker) -> None:
        if not self.breaks(worker):
            super().work(worker)

    def breaks(self, worker: Worker) -> bool:
        """End a stage that has lost a lender."""
        job = worker.queue[0] if worker.queue else None
        if job is None or not job.began or job.order.lenders == ():
            return False
        if all(lender in self.workers for lender in job.order.lenders):
            return False
        worker.warm = None
        worker._end(job, "lost")
        return True

    def expect(self, event: Event) -> None:
        for attempt in self.dispatcher.attempts.values():
            is_lost = isinstance(event, WorkerLost) and event.worker in attempt.lenders
            ends = isinstance(event, TrainingEnded) and event.attempt == attempt.id
            is_lost |= ends and event.status == "lost"  # type: ignore[union-attr]
            self.losses += is_lost and bool(attempt.lenders)
        super().expect(event)

    def launched(self, order: RunStage) -> None:
        members = (order.worker, *order.lenders)
        assert len(members) == len(set(members)) == self.count(order.node, order.start)
        assert len({self.kind_of(member) for member in members}) == 1
        assert all(member in self.workers for member in members)
        if order.after is not None:
            assert order.lenders == self.orders[order.after].lenders
        super().launched(order)

    def count(self, node: Node, step: Step) -> int:
        return devices_at(node.sequences, max(step, node.start))

    @property
    def kept(self) -> set[str]:
        several = self.dispatcher.placing.policy(SeveralWorkers)
        assert several is not None
        return several.kept

    def may_join(self, worker: str, node: Node) -> bool:
        return self.dispatcher.placing.may_join(worker, node.needs)

    # --------------------------------------------------------------------- invariants

    @invariant()
    def no_worker_is_in_two_gangs(self) -> None:
        attempts = [each for each in self.dispatcher.attempts.values() if not each.ended]
        for each in attempts:
            for other in attempts:
                if each.lenders and {*each.lenders} & {*other.workers}:
                    assert other.workers == each.workers, f"{each} and {other}"

    @invariant()
    def idle_workers_are_those_that_may_have_stages(self) -> None:
        slots = self.dispatcher.slots
        idle = {name for name in slots if not RunView(self.dispatcher).is_busy(name)}
        usable = {name for name in idle - self.leaving - self.paused if not self.is_withheld(name)}
        kept = self.kept
        assert kept <= usable - self.aside
        assert bool(kept) <= bool(RunView(self.dispatcher).gathering)
        assert len(usable - self.aside - kept) == self.dispatcher.idle_workers

    @invariant()
    def lenders_are_given_back(self) -> None:
        attempts = [each for each in self.dispatcher.attempts.values() if not each.ended]
        lent = {lender for each in attempts for lender in each.lenders}
        there = {name for name, slot in self.dispatcher.slots.items() if slot.lent_to}
        assert there == lent & self.dispatcher.slots.keys()

    @invariant()
    def no_worker_waits_while_there_is_work(self) -> None:
        dispatcher, frontier = self.dispatcher, self.dispatcher.frontier
        slots = {
            name
            for name in dispatcher.slots.keys() - self.leaving - self.paused
            if not self.is_withheld(name)
        }
        kept = self.kept
        idle = {name for name in slots - self.aside - kept if not RunView(dispatcher).is_busy(name)}
        for node in frontier.ready() if idle else ():
            count = self.count(node, node.start)
            able = {name for name in idle if count == 1 or self.may_join(name, node)}
            kinds = Counter(map(self.kind_of, able))
            work = frontier.work(node)
            may_wait = (work.raised_on or work.lost) and len(slots) > 1
            assert may_wait or max(kinds.values(), default=0) < count, f"{node} waits"

    @invariant()
    def a_stage_that_waits_could_begin(self) -> None:
        dispatcher = self.dispatcher
        for node in RunView(dispatcher).gathering:
            kinds = RunView(dispatcher).devices_for(node)
            assert max(kinds.values()) >= self.count(node, node.start) > 1

    # ----------------------------------------------------------------------- the end

    def teardown(self) -> None:
        if hasattr(self, "dispatcher"):
            self.lend(None)
            for _ in range(MOST):
                self.join()
            while self.go_on() or self.aside:
                # Those that are put aside are tried again.
                self.now += 100.0
                self.tell(Tick())
        super().teardown()

    def go_on(self) -> bool:
        broken = [self.breaks(worker) for worker in self.workers.values()]
        return super().go_on() or any(broken)


GangMachine.TestCase.settings = OF_VARIANTS
TestDispatcherOfGangs = GangMachine.TestCase


class GangsOfClassesMachine(GangMachine):
    """The same with workers of two classes: a gang has workers of one of them."""

    def kind_of(self, worker: str) -> str:
        return ("new", "old")[int(worker[1:]) % 2]

    def teardown(self) -> None:
        if hasattr(self, "dispatcher"):
            for _ in range(MOST):
                self.join()
        super().teardown()

    def no_worker_waits_while_there_is_work(self) -> None:
        """Not checked: a stage may wait for a faster worker (`tests.graph.test_market`)."""

    def the_best_is_the_longest_of_the_highest_priority(self) -> None:
        """Not checked: a length is in seconds here, as far as speeds are known."""


GangsOfClassesMachine.TestCase.settings = OF_VARIANTS
TestDispatcherOfGangsOfClasses = GangsOfClassesMachine.TestCase


class GangsOfGpusMachine(GangMachine):
    """The same with two workers on each GPU: a gang has one of them."""

    def gpu_of(self, worker: str) -> str:
        return f"GPU-{int(worker[1:]) // 2}"

    def launched(self, order: RunStage) -> None:
        members = (order.worker, *order.lenders)
        assert len(members) == len(set(map(self.gpu_of, members)))
        super().launched(order)

    def teardown(self) -> None:
        if hasattr(self, "dispatcher"):
            for _ in range(MOST):
                self.join()
        super().teardown()


GangsOfGpusMachine.TestCase.settings = OF_VARIANTS
TestDispatcherOfGangsOfGpus = GangsOfGpusMachine.TestCase
