"""The dispatcher: a state machine from events and decisions to instructions.

It holds the search plan, the frontier of stages, the slots and the attempts, and knows no
Dask, file or clock: ``handle(event, now) -> instructions``. A runner carries out what it
says and tells it what happened; a simulated one is enough to run a whole study.
What a worker runs next is chosen in `dasktune.graph.placement`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Sequence as Ordered
from itertools import chain
from typing import assert_never

from dasktune.graph.attempts import Attempt, DispatchOptions, Slot
from dasktune.graph.events import (
    AuditsRun,
    Bound,
    Event,
    Evicted,
    Failed,
    Found,
    Granted,
    Instruction,
    Omitted,
    Paused,
    Progress,
    Reports,
    Saved,
    SaveMissed,
    StagesHeld,
    Started,
    StatesRead,
    StopStage,
    StoreCrowded,
    Taken,
    Tick,
    TrainedElsewhere,
    TrainingEnded,
    WorkerGone,
    WorkerJoined,
    WorkerLeaving,
    WorkerLost,
    WorkersJoined,
)
from dasktune.graph.frontier import Failure, Frontier, Loss
from dasktune.graph.kept_speeds import KeptMeasurements
from dasktune.graph.keys import SeededRoots
from dasktune.graph.matching import Unplaced
from dasktune.graph.open_attempts import OpenAttempts
from dasktune.graph.placement import Placing, PolicyMaker
from dasktune.graph.plan import Node, SearchPlan
from dasktune.graph.policies import POLICIES
from dasktune.graph.requests import Requests
from dasktune.graph.speeds import Speeds
from dasktune.needs import Needs, NumericClass
from dasktune.types import Metrics, Sequences, Step


class Dispatcher:
    """Decides what runs where, from the requests of trials and the events of workers.

    Parameters
    ----------
    root_key
        The state key before any step.
    on_new
        Called with each new node of the plan, to fill in what is known of it already:
        checkpoints and metrics of earlier runs.
    may_place
        Whether all is known that `on_new` has begun to look up: until then no stage begins.
    seeded, alone_key
        See `SearchPlan`.
    speeds
        Learns what steps take.
    policies
        What decides besides the kernel of placement, in this order.
    """

    def __init__(
        self,
        root_key: str,
        options: DispatchOptions | None = None,
        *,
        on_new: Callable[[Node], None] | None = None,
        may_place: Callable[[], bool] = lambda: True,
        seeded: SeededRoots | None = None,
        alone_key: str | None = None,
        speeds: Speeds | None = None,
        policies: Iterable[PolicyMaker] = POLICIES,
    ) -> None:
        self.options = options or DispatchOptions()
        self.speeds = speeds or Speeds()
        self.frontier = Frontier(self.speeds.seconds_per_step, self.speeds.profile)
        self.placing = Placing(
            *(self.frontier, self.speeds, self.options),
            bind=self._bind,
            may_place=may_place,
            policies=policies,
        )
        self._out: list[Instruction] = []
        self.open = OpenAttempts(self.frontier, self.placing, self._out)
        self.requests = Requests(self.frontier)
        self.plan = SearchPlan(
            root_key,
            merge=self.options.merge,
            alone_key=alone_key,
            on_split=self.open.split,
            on_new=on_new,
            seeded=seeded,
        )
        self._plain: NumericClass | None = None
        self._unplaced = Unplaced()
        self._draining = False
        self._may_place = may_place

    # ------------------------------------------------------------------- decisions

    def register(
        self,
        trial: int,
        sequences: Sequences,
        max_steps: Step,
        seed: int = 0,
        *,
        is_alone: bool = False,
        needs: Needs | None = None,
        model_rank: float | None = None,
        numerics: NumericClass | None = None,
    ) -> list[Instruction]:
        """Make a trial known up to `max_steps`, without asking for its training."""
        leaf = self.plan.register(
            *(trial, sequences, max_steps, seed),
            is_alone=is_alone,
            needs=needs,
            model_rank=model_rank,
            numerics=numerics,
        )
        if needs is not None or model_rank is not None:
            self.frontier.group_again(leaf)
        for point in self.placing.registered(leaf):
            self.open.say(point)
        return self._take()

    def separate(self, trial: int, sequences: Sequences, max_steps: Step, seed: int = 0) -> Step:
        """Train a trial alone from now on; it must ask for nothing.

        Returns
        -------
        int
            The last of its steps that was trained before, as far as is known; 0 if none was.
        """
        path = self.plan.paths[trial]
        needs = next(iter(path.needs), None)
        nodes = self.plan.remove(trial)
        self.plan.register(
            *(trial, sequences, max_steps, seed),
            is_alone=True,
            needs=needs,
            model_rank=path.model_rank,
        )
        reached = [(self.frontier.work(node).trained, node.start) for node in nodes]
        return max((step for step, start in reached if step > start), default=0)

    def extend(
        self,
        trial: int,
        until: Step,
        priority: float,
        now: float,
        reports: Ordered[Step] = (),
    ) -> list[Instruction]:
        """Ask for a trial to be trained up to `until`, and reported there and at `reports`."""
        before = self.requests.withdraw(trial)
        sequences = self.plan.paths[trial].sequences
        steps = (*reports, until)
        nodes = tuple(self.plan.register(trial, sequences, step) for step in steps)
        failure = self.frontier.failure_above(nodes[-1])
        if failure is not None:
            self._out.append(self.requests.fail(trial, failure))
            return self._take()
        self.placing.request(nodes[-1])
        self._tell_class(nodes[-1], [trial])
        self._out.extend(self.requests.ask(trial, nodes, priority))
        if before is not None:
            self.open.shorten_above(before)
        self._fill(now)
        return self._take()

    def rank(self, trial: int, priority: float) -> list[Instruction]:
        """Change the priority of what a trial asks for."""
        self.requests.rank(trial, priority)
        return self._take()

    def stop(self, trial: int, now: float) -> list[Instruction]:
        """Withdraw the requests of a trial; stages that no other trial wants are stopped."""
        node = self.requests.withdraw(trial)
        if node is not None:
            self.open.shorten_above(node)
            self._fill(now)
        return self._take()

    def meet(
        self, plain: NumericClass, present: Collection[NumericClass], begun: Iterable[int]
    ) -> None:
        """Handle the numeric classes of the workers with which a run begins.

        Parameters
        ----------
        begun
            The trials that have been trained on the plain class: they go on there.
        """
        self._plain = plain
        if not any(numerics.in_keys for numerics in present):
            self.plan.look_up(plain=True)
            return
        self.placing.begin_run(present)
        for trial in begun:
            lineage = self.plan.paths[trial].leaf.lineage
            if lineage.numerics is None:
                self._bind_to(lineage, plain)
        self.plan.look_up(plain=plain in present)
        for lineage in [] if plain in present else self.plan.unbound:
            self.plan.forget_states(lineage)
            self.frontier.moved(list(lineage.below()), anew=True)

    def forgive(self, trial: int) -> None:
        """Forget that steps of a trial cannot be trained: they are tried again."""
        for node in list(self.plan.paths[trial].leaf.up()):
            self.frontier.forgive(node)

    def answer(self, trial: int, step: Step, metrics: Metrics) -> list[Instruction]:
        """Handle metrics that were measured elsewhere, for a trial that no worker trains."""
        node = self.plan.register(trial, self.plan.paths[trial].sequences, step)
        node.metrics.add(step, metrics)
        self._answer([node])
        return self._take()

    def learn(self, event: StatesRead) -> None:
        """Handle states that registered trials have met; the maker of a dispatcher may call it."""
        for state in event.states:
            if self.plan.looks_up or state.node.numerics is not None:
                self._found(state)
            else:
                # The workers have met while its commit was read, and none is of its class.
                self.plan.forget_state(state.node, state.step, state.reports)

    def measure(self, trial: int, step: Step, *, steps: Step, seconds: float) -> None:
        """Learn from `steps` up to `step` of a trial that took so long elsewhere."""
        node = self.plan.node_at(trial, step)
        self.speeds.observe(node, steps=steps, seconds=seconds)

    def recall(self, kept: KeptMeasurements) -> None:
        """Begin a run with the measurements of earlier runs, and no others."""
        self.speeds.recall(kept.speeds)
        for policy in self.placing.policies:
            policy.recalled(kept)
        self.frontier.reweigh()

    @property
    def kept(self) -> KeptMeasurements:
        """The measurements of the run, for later ones."""
        factors = chain.from_iterable(policy.learned() for policy in self.placing.policies)
        return KeptMeasurements(tuple(self.speeds.kept), tuple(factors))

    def drain(self) -> list[Instruction]:
        """Stop every stage at its next step and start no more; requests stay."""
        self._draining = True
        for attempt in list(self.attempts.values()):
            if attempt.taken:
                self.open.release(attempt)
            elif not attempt.ended:
                self.open.halt(attempt)
        return self._take()

    def dismiss(self) -> None:
        """Forget all workers, requests, and attempts of which nothing more can be heard."""
        for attempt in reversed(list(self.attempts.values())):
            self.open.close(attempt)
            self.open.release(attempt)
        for trial in list(self.requests.waiting):
            self.requests.withdraw(trial)
        self.placing.clear()
        self._unplaced = Unplaced()
        self.plan.forget_needs()
        self.frontier.order(deepest_first=False)
        self._draining = False

    # ---------------------------------------------------------------------- events

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Handle one event at time `now` (seconds); return the instructions that follow."""
        self.placing.now = now
        match event:
            case WorkerJoined():
                self.placing.join([event])
            case WorkersJoined():
                self.placing.join(event.workers)
            case WorkerLeaving():
                self._worker_leaving(event.worker)
            case WorkerGone():
                self.placing.lose(event.worker)
            case WorkerLost():
                self._worker_lost(event)
            case Started():
                self._started(event.attempt, now)
            case Progress():
                self._progress(event, now)
            case Saved() | Omitted():
                self._durable(event)
            case SaveMissed():
                self._save_missed(event)
            case TrainingEnded():
                self._ended(event, now)
            case Failed():
                self._failed(event, now)
            case Taken():
                self._taken(event)
            case Found():
                self._found(event)
            case StatesRead():
                self.learn(event)
            case TrainedElsewhere():
                self._trained_elsewhere(event)
            case Evicted():
                self._forget_state(event.node, event.step)
            case StoreCrowded():
                self.frontier.order(deepest_first=event.is_crowded)
            case Granted():
                self._granted(event)
            case Paused() | AuditsRun() | StagesHeld():
                self.placing.receive(event)
            case Tick():
                pass
            case _:
                assert_never(event)
        self._fill(now)
        return self._take()

    def seconds_per_step(self, trial: int) -> float:
        """Return the estimated seconds of one step of a trial; 0 before the first measurement."""
        if not self.speeds.is_known:
            return 0.0
        return self.speeds.seconds_per_step(self.plan.paths[trial].leaf)

    def metrics_between(self, trial: int, low: Step, high: Step) -> list[tuple[Step, Metrics]]:
        """Return the known metrics of a trial at steps strictly between two, in order."""
        return [
            (step, node.metrics[step])
            for node in self.plan.nodes_of(trial)
            if node.start < high and node.stop > low
            for step in node.metrics
            if low < step < high
        ]

    def next_tick(self, now: float) -> float | None:
        """Return when a `Tick` is due: a worker is about to run dry, or is to be tried again."""
        return None if self.is_held else self.placing.next_tick(now)

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The slots by worker."""
        return self.placing.slots

    @property
    def idle_workers(self) -> int:
        """Number of idle workers that may begin a stage now."""
        return 0 if self.is_held else self.placing.idle_workers

    @property
    def unplaced(self) -> Iterator[Node]:
        """Yield the ready stages whose needs no worker meets."""
        able = self.placing.matching.able
        return (node for node in self.frontier.ready() if node.needs and not able(node.needs))

    def unplaced_long(self, now: float) -> int:
        """Return how many of them have waited for so long that the tuner may begin other trials."""
        return self._unplaced.lasting(self.unplaced, now)

    @property
    def is_idle(self) -> bool:
        """Whether no attempt is under way."""
        return not self.attempts

    @property
    def attempts(self) -> Mapping[str, Attempt]:
        """The attempts under way, by id."""
        return self.open.by_id

    @property
    def wanted(self) -> Mapping[int, Ordered[Node]]:
        """The nodes that each trial with live requests waits for, in the order of steps."""
        return self.requests.waiting

    # ---------------------------------------------------------------------- classes

    def _bind(self, node: Node, numerics: NumericClass) -> None:
        """Choose the numeric class of a stage's lineage: the plain one if it began there.

        It did if anything is known of it: until now all workers were of that class.
        """
        lineage = node.lineage
        has_begun = any(
            each.checkpoints or each.metrics or self.frontier.is_running(each)
            for each in lineage.below()
        )
        plain = self._plain if has_begun else None
        self._bind_to(lineage, plain or numerics)

    def _bind_to(self, lineage: Node, numerics: NumericClass) -> None:
        nodes = self.plan.bind(lineage, numerics)
        self.frontier.moved(nodes, anew=numerics.in_keys)
        self._tell_class(lineage, sorted({trial for node in nodes for trial in node.requests}))
        answered = [node for node in nodes if node.requests and node.stop in node.metrics]
        self._answer(sorted(answered, key=lambda node: node.stop))

    def _tell_class(self, node: Node, trials: Iterable[int]) -> None:
        """Have the class of a node noted for trials if keys name it."""
        numerics = node.numerics
        if numerics is not None and numerics.in_keys:
            self._out.extend(Bound(trial=trial, numerics=numerics) for trial in trials)

    # --------------------------------------------------------------------- workers

    def _worker_leaving(self, worker: str) -> None:
        self.placing.retire(worker)
        for attempt in list(self.attempts.values()):
            if worker in attempt.workers and not attempt.ended:
                self.open.halt(attempt)

    def _granted(self, event: Granted) -> None:
        self.placing.receive(event)
        for attempt in list(self.attempts.values()):
            is_withheld = any(map(self.placing.is_withheld, attempt.workers))
            if is_withheld and not attempt.ended:
                self.open.halt(attempt)

    def _worker_lost(self, event: WorkerLost) -> None:
        is_blameless = event.is_blameless or self.placing.is_leaving(event.worker)
        lost = [attempt for attempt in self.attempts.values() if attempt.worker == event.worker]
        blamed = [attempt for attempt in lost if attempt.has_begun and not attempt.ended]
        if not is_blameless:
            blamed = [attempt for attempt in blamed if not self._outgrew(attempt, is_sure=False)]
        self.placing.lose(event.worker)
        for attempt in reversed(lost):
            self.open.close(attempt)
            self.open.release(attempt)
        blamed += self._without_lender(event.worker)
        for attempt in [] if is_blameless else blamed:
            self._blame(attempt, event.worker)

    def _without_lender(self, worker: str) -> list[Attempt]:
        """Stop the attempts to which a lost worker was lent; return those that had begun.

        Their own worker has them until it says how they ended. If it has said so before, they are
        blamed already.
        """
        attempts = self.attempts.values()
        lacking = [each for each in attempts if worker in each.lenders and not each.ended]
        blamed = [each for each in lacking if each.has_begun and not each.stopping]
        for attempt in lacking:
            if not attempt.stopping:
                attempt.become("stopping")
            # Also if it was told to stop before: it may wait for the lender in its present step.
            self.open.say(StopStage(attempt=attempt.id, worker=attempt.worker, lost=worker))
        return blamed

    def _blame(self, attempt: Attempt, worker: str) -> None:
        """Count that a worker was lost while it trained the step after the last one heard of.

        Workers that come and go lose it at one step and another. What kills its worker does
        so at the same one each time.
        """
        node = attempt.node_at(min(attempt.position + 1, attempt.stop))
        work = self.frontier.work(node)
        suspects = attempt.lenders if worker in self.slots else (worker,)
        loss = Loss(
            joins=self.placing.joins,
            suspects={each: attempt.hosts.get(each, "") for each in suspects},
        )
        got_further = attempt.position > work.lost_at
        work.lost = (loss,) if got_further else (*work.lost, loss)
        work.lost_at = max(attempt.position, work.lost_at)
        if work.losses > self.options.losses_allowed:
            which = "one of its workers" if attempt.lenders else "its worker"
            message = (
                f"{which} was lost {work.losses} times in a row in or soon after step "
                f"{work.lost_at}, last {worker}; it may need more memory than there is"
            )
            self._fail_node(node, Failure(step=attempt.position, message=message))

    # -------------------------------------------------------------------- attempts

    def _started(self, attempt_id: str, now: float) -> None:
        attempt = self.attempts.get(attempt_id)
        if attempt is not None and not attempt.begun:
            attempt.begun, attempt.started = True, now
            self.placing.started(attempt)

    def _progress(self, event: Progress, now: float) -> None:
        attempt = self.attempts.get(event.attempt)
        if attempt is None:
            return
        if event.trainer_ended_at is not None:
            attempt.trainer_ended_at = event.trainer_ended_at
        self.open.advance(attempt, event.step)
        self.placing.progressed(attempt, event.step, now)
        steps = event.step - attempt.start
        # Each time as many steps again: a long stage is measured early, and costs little.
        if event.seconds and steps >= 2 * attempt.timed_steps and not attempt.ended:
            self._learn_pace(attempt, steps, event.seconds)

    def _learn_pace(self, attempt: Attempt, steps: int, seconds: float) -> None:
        """Learn the speed from an attempt that has trained so many steps in this time."""
        more, longer = steps - attempt.timed_steps, seconds - attempt.timed_seconds
        attempt.timed_steps, attempt.timed_seconds = steps, seconds
        if self.speeds.observe(attempt.leaf, steps=more, seconds=longer, kind=attempt.kind):
            self.frontier.reweigh()

    def _durable(self, event: Saved | Omitted) -> None:
        """Handle metrics that are durable, with the state at their end or without it."""
        attempt = self.attempts.get(event.attempt)
        if attempt is None:
            return
        self.open.advance(attempt, event.step)
        attempt.saved = max(attempt.saved, event.step)
        node = attempt.node_at(event.step)
        if isinstance(event, Saved):
            node.checkpoints.add(event.step)
        rival = None
        if event.step == node.stop:
            rival = self.open.on(node)
            self.frontier.settle(node)
        self._take_reports(attempt.leaf, event.reports)
        self.frontier.state_arrived(node)
        if rival is not None and rival is not attempt and not rival.ended:
            self.open.shorten(rival)
        if attempt.ended and event.step >= attempt.position:
            self.open.release(attempt)

    def _answer(self, nodes: list[Node]) -> None:
        """Answer what is asked at nodes whose metrics are known now; shorten what trains for it."""
        self._out.extend(self.requests.answer(nodes))
        for node in nodes:
            self.open.shorten_above(node)

    def _take_reports(self, node: Node, reports: Reports) -> None:
        """Keep metrics at or above a node and answer with them; what was recorded first stands."""
        places = []
        for step, metrics in reversed(reports):
            while step <= node.start and node.parent is not None:
                node = node.parent
            places.append((node, step, metrics))
        answered = []
        for node, step, metrics in reversed(places):  # at the end of a column it costs least
            node.metrics.add(step, metrics)
            if step == node.stop and node.requests:
                answered.append(node)
        self._answer(answered)

    def _save_missed(self, event: SaveMissed) -> None:
        attempt = self.attempts.get(event.attempt)
        if attempt is None or event.step >= attempt.leaf.stop:
            return
        if attempt.worker not in self.slots:
            return  # that a worker which is gone does not answer says nothing of its steps
        self.open.advance(attempt, event.step)
        node = attempt.node_at(event.step)
        if node.stop == event.step and self.frontier.work(node).attempt == attempt.id:
            self.frontier.assign(node, None)

    def _ended(self, event: TrainingEnded, now: float) -> None:
        attempt = self.attempts.get(event.attempt)
        if attempt is None:
            return
        if attempt.ended:
            if event.status == "lost":
                self.open.release(attempt)
            return
        self.open.advance(attempt, event.step)
        self.placing.ended(attempt, event)
        is_blamed = attempt.has_begun and not attempt.stopping
        self.open.close(attempt)
        slot = self.slots.get(attempt.worker)
        if slot is not None and slot.queue and slot.queue[0].started is None:
            # Its worker will go on with it now, whenever that is heard of.
            slot.queue[0].started = now
        steps = event.step - attempt.start
        if event.status == "trained" or (event.status == "stopped" and steps > 0):
            for worker in attempt.workers:
                self.placing.ended_well(worker)
        self._learn_pace(attempt, steps, event.seconds)
        self.speeds.is_settled |= steps > 0 and event.seconds > 0
        self.placing.loads.observe(attempt.kind, event.load_seconds)
        nothing_to_save = event.step == attempt.start and event.status == "stopped"
        is_saved = attempt.saved >= event.step
        if event.status == "missing" and not attempt.uprooted:
            self._forget_state(attempt.node, attempt.start)
        if (
            event.status in ("skipped", "lost", "superseded", "missing")
            or nothing_to_save
            or is_saved
        ):
            self.open.release(attempt)
        if event.status == "lost" and attempt.lenders and is_blamed:
            # A lender is gone, which the driver may not have heard of yet.
            gone = (lender for lender in attempt.lenders if lender not in self.slots)
            self._blame(attempt, next(gone, attempt.worker))

    def _forget_state(self, below: Node, step: Step) -> None:
        """Forget the state at a step on the way to a node, because it is gone."""
        for node in below.up():
            if step in node.checkpoints:
                node.checkpoints.discard(step)
                for attempt in self.attempts.values():
                    if attempt.start == step and attempt.node.holder(step) is node:
                        attempt.uprooted = True
                self.frontier.update(node)
                failure = self.frontier.failure_above(node)
                if failure is not None:
                    # A step that could not be trained again did not matter while it was there.
                    self._fail_below(node, failure)
                return

    def _taken(self, event: Taken) -> None:
        """Free the slot of an attempt whose steps another driver trains; wait for what it makes."""
        attempt = self.attempts.get(event.attempt)
        if attempt is None or attempt.ended:
            return
        self.open.close(attempt)
        attempt.become("taken")
        attempt.worker, attempt.lenders = "", ()
        self.open.shorten(attempt)  # its trials may have withdrawn their requests since the launch

    def _found(self, event: Found) -> None:
        """Handle a state that another driver has made."""
        self._trained_elsewhere(event)
        node = event.node.holder(event.step)
        node.checkpoints.add(event.step)
        rival = None
        if event.step == node.stop:
            rival = self.open.on(node)
            self.frontier.settle(node)
        self._take_reports(node, event.reports)
        self.frontier.state_arrived(node)
        if rival is not None and rival.taken and rival.stop <= event.step:
            self.open.release(rival)  # what others train beyond is not waited for
        elif rival is not None and not rival.ended:
            self.open.shorten(rival)
            if not rival.stopping:
                self.frontier.assign(node, rival.id)  # what comes after it goes on from memory

    def _trained_elsewhere(self, event: TrainedElsewhere | Found) -> None:
        """Note the steps that were trained: those that are trained here count as repeated."""
        for node in event.node.up():
            work = self.frontier.work(node)
            work.trained = max(work.trained, min(event.step, node.stop))

    def _failed(self, event: Failed, now: float) -> None:
        attempt = self.attempts.get(event.attempt)
        if attempt is None:
            return
        self.open.advance(attempt, event.step)
        is_blameless = event.is_out_of_memory and self._outgrew(attempt, is_sure=True)
        self.open.close(attempt)
        if is_blameless:
            self.open.release(attempt)
            return
        node = attempt.node_at(min(event.step + 1, attempt.leaf.stop))
        if node.is_alone:
            node = attempt.leaf  # it is trained anew as a whole
        hosts = {each: self.placing.host_of(each) for each in attempt.workers}
        self.frontier.raised(node, event.step, hosts)
        for member in attempt.workers:
            for place in self.placing.raised(member, (node, event.step), event.message, now):
                self.frontier.excuse(place, member)
        self.open.release(attempt)
        if self.placing.is_hopeless(node, event.step):
            failure = Failure(step=event.step, message=event.message, traceback=event.traceback)
            self._fail_node(node, failure)

    def _outgrew(self, attempt: Attempt, *, is_sure: bool) -> bool:
        """Note that memory was not enough for an attempt; return whether it shared its device.

        Then others may have filled it: the steps are tried once more, alone.
        """
        node = attempt.node_at(min(attempt.position + 1, attempt.leaf.stop))
        return self.placing.outgrew(attempt, node, is_sure=is_sure)

    def _fail_node(self, node: Node, failure: Failure) -> None:
        """Fail every trial whose request needs the step that cannot be trained."""
        self.frontier.work(node).failed = failure
        self._fail_below(node, failure)
        self.frontier.update(node)

    def _fail_below(self, node: Node, failure: Failure) -> None:
        for below in list(self.frontier.needing(node)):
            for trial in list(below.requests):
                self._out.append(self.requests.fail(trial, failure))
            self.open.shorten_above(below)

    # -------------------------------------------------------------------- requests

    @property
    def is_held(self) -> bool:
        """Whether no stage may begin now."""
        return self._draining or not self._may_place()

    def _fill(self, now: float) -> None:
        if not self.is_held:
            self._out.extend(self.placing.fill(now))
            for attempt in self.placing.leaving(now):
                self.open.halt(attempt)

    def _take(self) -> list[Instruction]:
        out = self._out.copy()
        self._out.clear()
        return out
