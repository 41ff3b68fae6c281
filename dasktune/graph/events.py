"""Events that the dispatcher receives, and its instructions to the runner: frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dasktune.graph.plan import Node
from dasktune.needs import NumericClass, Offer
from dasktune.types import Metrics, Report, Step

Reports = tuple[tuple[Step, Metrics], ...]
"""Metrics by step, in order."""

# ------------------------------------------------------------------------------ events


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJoined:
    """A worker can take stages.

    Parameters
    ----------
    resources
        The amounts that it has, by name.
    kind
        The name of its compute class: workers of one class are equally fast. Empty where all
        are taken for one class.
    tags
        The words that it is marked with, which needs may ask for.
    host
        The host that it runs on; empty if that is not known.
    numerics
        Its numeric class; None where all workers are taken for one.
    device
        Unique name of the device that it shares with other workers, of which only as many train
        at a time as that pays; empty where it shares none.
    device_bytes
        Memory of that device; 0 if it is not known.
    gpu
        Unique name of its GPU, on which other workers may train, too; empty if the GPU is not
        known, or if it trains on the CPU.
    """

    worker: str
    resources: Mapping[str, float] = field(default_factory=dict)
    kind: str = ""
    tags: frozenset[str] = frozenset()
    host: str = ""
    numerics: NumericClass | None = None
    device: str = ""
    device_bytes: int = 0
    gpu: str = ""

    @property
    def offer(self) -> Offer:
        """The offer of the worker to stages."""
        return Offer.of(self.resources, self.kind, self.tags, numerics=self.numerics)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersJoined:
    """Several workers can take stages; all are known before any of them is given a stage."""

    workers: tuple[WorkerJoined, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLeaving:
    """A worker will be gone soon: it gets no more stages, and ends what it has at its next step."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGone:
    """A worker is gone: it gets no more stages. `WorkerLost` follows for those that it had.

    Between these two events the driver looks up which states of the worker are durable.
    """

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost:
    """A worker is gone, with every state that was not durable.

    Parameters
    ----------
    is_blameless
        Whether what it ran cannot be the reason: it was to leave, or all of a cluster are gone
        at once.
    """

    worker: str
    is_blameless: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A worker has begun an attempt."""

    attempt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """An attempt has trained up to `step`. Not durable.

    Parameters
    ----------
    seconds
        Time spent in training steps and their evaluation since the attempt's start; 0 if it is
        not known.
    trainer_ended_at
        The last step that was trained, if the trainer has ended by itself.
    """

    attempt: str
    step: Step
    seconds: float = 0.0
    trainer_ended_at: Step | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The state of an attempt at `step` is durable, and so are these metrics.

    `reports` hold every metric since the attempt's last durable state; a stage that only
    evaluates has its metrics here, too.
    """

    attempt: str
    step: Step
    reports: Reports = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Omitted:
    """An attempt has come to its end at `step`, and these metrics are durable; its state is not.

    To store it would cost more than to train it again. `reports` are as in `Saved`.
    """

    attempt: str
    step: Step
    reports: Reports = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveMissed:
    """A save-point reached an attempt after it had trained past `step`."""

    attempt: str
    step: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEnded:
    """Training of an attempt has ended at `step`: its slot is free.

    Parameters
    ----------
    status
        ``trained``: its end was reached; ``stopped``: it was told to stop, or the worker
        is closing; ``skipped``: the attempt before it on the same worker did not get to
        its end; ``missing``: the state that it starts from is not in the store, or is not
        what was saved; ``superseded``: another attempt had committed the same state first;
        ``lost``: its states could not be made durable.
    seconds
        Time spent in training steps and their evaluation.
    load_seconds
        Time of loading the state that it starts from, the trainer's building included; 0 if the
        worker held it, or the attempt starts from step 0.
    peak_bytes
        The most memory of a shared device that the worker's process has held; 0 if unknown.
    """

    attempt: str
    step: Step
    status: Literal["trained", "stopped", "skipped", "superseded", "missing", "lost"]
    seconds: float = 0.0
    load_seconds: float = 0.0
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The trainer of an attempt raised in the step after `step`.

    Parameters
    ----------
    is_out_of_memory
        Whether it raised because memory was full.
    """

    attempt: str
    step: Step
    message: str
    traceback: str = ""
    is_out_of_memory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Another driver is training the steps of an attempt, which was not sent to its worker.

    `Found` reports the states that the other driver saves. `TrainingEnded` with the status
    ``lost`` reports that the other driver is done, or gone: missing states are wanted again.
    """

    attempt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The state of a node at `step` is in the store: another driver has made it.

    Parameters
    ----------
    node
        Holds the step, or is below the one that does.
    reports
        Metrics that came with it, of any steps on the way to it.
    """

    node: Node
    step: Step
    reports: Reports = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StatesRead:
    """Of the states that new nodes have met and no database knows, these can be read.

    Until this event no stage was placed that might have made one of them again.
    """

    states: tuple[Found, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedElsewhere:
    """Another driver has trained the steps on the way to a node, up to `step`.

    It may have saved none of their states: those that are trained here count as repeated.
    """

    node: Node
    step: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Evicted:
    """The state of a node at `step` is in the store no more: others had to go there."""

    node: Node
    step: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCrowded:
    """States that wait for what goes on from them fill the store's budget, or do so no more.

    While they do, the dispatcher ends one branch before it begins the next: the deepest start
    goes first, so that few states have to wait.
    """

    is_crowded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """The study may use these workers alone, since it shares the cluster with other studies.

    What it trains on others ends at its next step, as on a worker that leaves.

    Parameters
    ----------
    workers
        Those of them that have not joined yet count when they do. None for all.
    """

    workers: frozenset[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """Dask has paused these workers, and no others: they begin nothing, but finish their stages."""

    workers: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagesHeld:
    """The check of the trainer runs, or has ended: which stages must wait for it from now on."""

    which: Literal["all", "resumes", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditsRun:
    """These audits are under way, and no others.

    Parameters
    ----------
    nodes
        By worker, the node whose steps its audit trains again.
    """

    nodes: Mapping[str, Node]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed."""


Event = (
    WorkerJoined
    | WorkersJoined
    | WorkerLeaving
    | WorkerGone
    | WorkerLost
    | Started
    | Progress
    | Saved
    | Omitted
    | SaveMissed
    | TrainingEnded
    | Failed
    | Taken
    | Found
    | StatesRead
    | TrainedElsewhere
    | Evicted
    | StoreCrowded
    | Granted
    | Paused
    | AuditsRun
    | StagesHeld
    | Tick
)

# ------------------------------------------------------------------------ instructions


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStage:
    """Start an attempt on a worker.

    Parameters
    ----------
    order
        Position among all attempts: lower goes first on one worker.
    after
        The attempt that this one carries on from, on the same worker; None if it starts
        from a state in the store, or from step 0.
    node
        Where in the plan it ends; for its sequences and keys, not to be changed.
    start, stop
        Steps.
    saves
        Steps strictly between at which the state is saved.
    needs
        Resources that it occupies while it runs.
    lenders
        The addresses of the workers whose devices train it with its own, in the order of their
        ranks from 1 on; see `dasktune.graph.attempts.Attempt`.
    is_last
        Whether no registered trial has to go on from its end.
    """

    attempt: str
    order: int
    worker: str
    after: str | None
    node: Node
    start: Step
    stop: Step
    saves: tuple[Step, ...]
    needs: Mapping[str, float]
    lenders: tuple[str, ...] = ()
    is_last: bool = False

    @property
    def workers(self) -> tuple[str, ...]:
        """Its own worker, and its lenders."""
        return self.worker, *self.lenders


@dataclass(frozen=True, slots=True, kw_only=True)
class StopStage:
    """Stop an attempt at step `at`, or at its next step if None, and save there.

    Parameters
    ----------
    lost
        The lender that is gone, if that is why: its worker waits for it no longer. Empty otherwise.
    """

    attempt: str
    worker: str
    at: Step | None = None
    lost: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavePoint:
    """Save the state of an attempt also when it reaches `step`."""

    attempt: str
    worker: str
    step: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver:
    """Give a durable report to the tuner."""

    report: Report


@dataclass(frozen=True, slots=True, kw_only=True)
class FailTrial:
    """A trial cannot be trained any further."""

    trial: int
    step: Step
    message: str
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """All steps of a trial are trained on one numeric class, which its state keys name."""

    trial: int
    numerics: NumericClass


Instruction = RunStage | StopStage | SavePoint | Deliver | FailTrial | Bound
