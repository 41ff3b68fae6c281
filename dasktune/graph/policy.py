"""The hooks by which a policy takes part in placement.

`dasktune.graph.placement` is the kernel: it knows slots and paths. Whatever else decides which
stage runs where is a policy, in a file of its own in `dasktune.graph.policies`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal, NamedTuple

from dasktune.graph.attempts import Attempt, Slot
from dasktune.graph.events import Event, SavePoint, TrainingEnded, WorkerJoined
from dasktune.graph.kept_speeds import KeptFactor, KeptMeasurements
from dasktune.graph.plan import Node, NodeStep
from dasktune.needs import NumericClass
from dasktune.types import Step


class Placement(NamedTuple):
    """A stage that shall begin, the slot that it gets, and the workers that are lent to it."""

    node: Node
    slot: Slot
    lenders: tuple[str, ...] = ()


class Policy:
    """One reason for or against stages on workers. By default it agrees with everything.

    What is left out of `dasktune.graph.policies.POLICIES` has no effect. The methods that note what
    happens are called for all policies; only `registered`, `idle_served` and `placing_ends` are
    called for those that the run needs (`is_open`). The methods that answer are called for these,
    too; only `is_extra`, `may_join`, `company`, `moving` and `learned`, and `with_room` when
    `Placing.has_room` calls it, are called for all.
    """

    gathers = False
    """Whether `gather` chooses the workers of stages that take several."""

    prefers = False
    """Whether `preferred` chooses between slots."""

    kept: Collection[str] = ()
    """The idle workers that this policy keeps for a stage that takes several."""

    @property
    def is_open(self) -> bool:
        """Whether the run needs this policy."""
        return True

    # ------------------------------------------------------------------- what happens

    def joined(self, slot: Slot, event: WorkerJoined) -> None:
        """Note a worker that is there."""

    def worker_gone(self, worker: str) -> None:
        """Note a worker that is gone; its slot is still there."""

    def cleared(self) -> None:
        """Forget all workers."""

    def received(self, event: Event) -> None:
        """Note an event that is about workers and not about an attempt."""

    def requested(self, node: Node) -> None:
        """Note a stage that a trial asks for."""

    def placing_begins(self, now: float) -> None:
        """Prepare to place stages: anything may have changed since the last time."""

    def changed(self) -> None:
        """Note that there may be other workers, or other stages, than before."""

    def launching(self, node: Node, slot: Slot, after: Attempt | None, now: float) -> None:
        """Note a stage that is about to be given to a worker: it is in no queue yet."""

    def entered(self, attempt: Attempt) -> None:
        """Note an attempt that is the first of its worker now."""

    def lender_added(self, lender: str, attempt: Attempt) -> None:
        """Note a worker that is lent to an attempt."""

    def launched(self, attempt: Attempt) -> None:
        """Note an attempt that was given to its workers."""

    def freed(self, worker: str, attempt: Attempt) -> None:
        """Note a worker that has nothing more to do after an attempt."""

    def started(self, attempt: Attempt) -> None:
        """Note an attempt that its worker has begun."""

    def advanced(self, attempt: Attempt) -> None:
        """Note an attempt that has trained steps."""

    def progressed(self, attempt: Attempt, step: Step) -> None:
        """Note how far an attempt is, as its worker says."""

    def ended(self, attempt: Attempt, event: TrainingEnded) -> None:
        """Note the end of a training, before its slot is free."""

    def ended_well(self, worker: str) -> None:
        """Note a worker that has trained a stage as it should."""

    def raised(self, worker: str, at: NodeStep, message: str, now: float) -> Collection[NodeStep]:
        """Note that the step after `at` raised on a worker.

        Returns
        -------
        collection
            The places at which an error of this worker is no evidence against the trial.
        """
        return ()

    def outgrew(self, attempt: Attempt, node: Node, *, is_sure: bool) -> bool:
        """Note that memory was not enough for a node; return whether its trials are not to blame.

        Parameters
        ----------
        is_sure
            Whether the worker said so. Otherwise it was lost, maybe for another reason.
        """
        return False

    def run_began(self, present: Collection[NumericClass]) -> None:
        """Note the numeric classes of the workers with which a run begins."""

    def recalled(self, kept: KeptMeasurements) -> None:
        """Begin with what earlier runs have measured, and nothing else."""

    def registered(self, leaf: Node) -> Iterable[SavePoint]:
        """Note a trial, by its last node; return the states that it needs of running stages."""
        return ()

    # --------------------------------------------------------------- what it is asked

    def may_have_stages(self, worker: str) -> bool:
        """Whether a worker may be given stages."""
        return True

    def is_trusted(self, worker: str) -> bool:
        """Whether a worker may get any stage; else only those that have raised on other workers."""
        return True

    def is_withheld(self, worker: str) -> bool:
        """Whether a worker is another study's."""
        return False

    def is_extra(self, worker: str) -> bool:
        """Whether a worker is not counted, since another one stands for it."""
        return False

    def may_join(self, worker: str) -> bool:
        """Whether a worker may train a stage together with others; asked also if not open."""
        return True

    def company(self, worker: str) -> int:
        """Return how many other workers of the same device have something to do."""
        return 0

    def with_room(self, workers: Collection[str]) -> Collection[str]:
        """Return those of some idle workers that have room for one stage more."""
        return workers

    def count_startable(self, workers: Collection[str]) -> int:
        """Return how many stages idle workers may begin in addition to those that are ready."""
        return len(workers)

    def may_start(self, node: Node) -> bool:
        """Whether a stage may begin now on some worker."""
        return True

    def fits(self, node: Node, slot: Slot) -> bool:
        """Whether a worker could train a stage at some time."""
        return True

    def may_run(self, node: Node, slot: Slot) -> bool:
        """Whether a worker that fits a stage may train it now."""
        return True

    def may_carry_on(self, attempt: Attempt, child: Node, now: float) -> bool:
        """Whether the stage after an attempt may be trained by the same workers."""
        return True

    def must_yield(self, child: Node) -> bool:
        """Whether a stage that would carry a path on must wait for one that goes first."""
        return False

    def keeps_in_place(self) -> bool:
        """Whether running stages stay where they are."""
        return False

    def is_prepared(self, node: Node, slot: Slot) -> bool:
        """Whether all is chosen that a stage needs. If not, choose it; stages are compared anew."""
        return True

    def preferred(self, slots: list[Slot]) -> list[Slot]:
        """Return those of some slots that a stage should rather have."""
        return slots

    def chosen(
        self, workers: Collection[str], now: float
    ) -> tuple[Node, Collection[str]] | Literal["kernel"] | None:
        """Return the stage that goes first on some workers, and those of its class among them.

        At least one of these may run it. None: no stage may begin. ``"kernel"`` leaves the choice
        to the kernel.
        """
        return "kernel"

    def more_saves(self, node: Node, start: Step) -> Iterable[Step]:
        """Return the steps at which a stage must save its state for this policy."""
        return ()

    def moving(self, now: float) -> Iterable[Attempt]:
        """Return the attempts whose stages should go on elsewhere; asked after `Placing.fill`."""
        return ()

    def due(self) -> float | None:
        """Return when time alone changes an answer."""
        return None

    def is_hopeless(self, node: Node, step: Step) -> bool | None:
        """Whether the step after `step` raised so often that its trials fail; None: ask others."""
        return None

    def learned(self) -> Iterable[KeptFactor]:
        """Return the factors that later runs should know of models that share devices."""
        return ()

    # ---------------------------------------- for stages that wait until enough are idle

    def release_kept(self) -> None:
        """Keep no worker: stages are compared anew."""

    def gather(self, node: Node, slots: list[Slot], workers: Collection[str]) -> Placement | None:
        """Return the workers of a stage that takes several; None if too few are idle."""
        raise NotImplementedError

    def keep(self, node: Node, workers: Collection[str], kind: str) -> None:
        """Keep idle workers of a class for a stage for which too few are idle."""

    def idle_served(self) -> None:
        """Note that idle workers have what they may have: those that are kept now stay so."""

    def placing_ends(self) -> None:
        """Note that running workers have what follows, too."""
