"""Attempts at stages, the slots that run them, and how a dispatcher decides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from dasktune.errors import InternalError
from dasktune.graph.plan import Node
from dasktune.graph.save_policy import SavePolicy
from dasktune.needs import NO_NEEDS, Needs
from dasktune.types import Step

Phase = Literal["open", "stopping", "ended", "taken"]
"""Where an attempt stands.

``open``: it waits for its worker, or trains. ``stopping``: its worker was told to end it at the
next step. ``ended``: its training is over, its last states may not be durable yet. ``taken``:
another driver trains its steps, and what that makes is waited for.
"""

FOLLOWING: Mapping[Phase, frozenset[Phase]] = {
    "open": frozenset({"stopping", "ended"}),
    "stopping": frozenset({"ended"}),
    "ended": frozenset({"taken"}),
    "taken": frozenset(),
}
"""The phases that may follow each phase. An attempt of which nothing more is waited for is gone."""


@dataclass(slots=True)
class Attempt:
    """One try at training a stage on one worker, or on several.

    Written by the dispatcher, the kernel of placement and `OpenAttempts`; policies only read it,
    except for the two fields of `ComputeClasses`.
    """

    id: str
    #: Where it shall end: before `leaf` if it was told so after it had been sent.
    node: Node
    #: Where it was first sent to.
    leaf: Node
    start: Step
    stop: Step
    #: The worker that saves and reports; empty once another driver trains its steps.
    worker: str
    #: The attempt, by id, whose state it goes on from in memory.
    after: str | None
    launched: float
    #: The last step of which the driver has heard.
    position: Step
    started: float | None = None
    #: The last step whose state or metrics are durable.
    saved: Step = -1
    #: Number of its steps that had been trained before.
    repeated: int = 0
    phase: Phase = "open"
    #: Its worker has said that it has begun.
    begun: bool = False
    #: The compute class of its worker.
    kind: str = ""
    #: The state that it starts from was gone: that it does not find it says nothing of a state that
    #: was saved there since.
    uprooted: bool = False
    #: The steps whose time has been learned from, and that time.
    timed_steps: int = 0
    timed_seconds: float = 0.0
    #: The time of the message with `position`.
    heard_at: float = 0.0
    #: `ComputeClasses`: its steps, and how often speeds had moved, when it was last looked at.
    reviewed: Step = 0
    knew: int = -1
    #: The class that shall train its rest, if it stops for that.
    goes_to: str = ""
    #: Attempts are numbered as they are launched.
    order: int = 0
    #: Workers of the class of its own worker that train it together with that, in the order of
    #: ranks from 1 on. They get nothing else until it has ended.
    lenders: tuple[str, ...] = ()
    #: The hosts of all its workers; a worker that is gone has none elsewhere.
    hosts: Mapping[str, str] = field(default_factory=dict)
    #: The last step of its trainer, if that has ended by itself.
    trainer_ended_at: Step | None = None

    def become(self, phase: Phase) -> None:
        """Enter a phase, which must be one that may follow."""
        if phase not in FOLLOWING[self.phase]:
            raise InternalError(f"attempt {self.id} is {self.phase}, it cannot become {phase}")
        self.phase = phase

    @property
    def stopping(self) -> bool:
        """Whether it was told to end at its next step, and has not yet."""
        return self.phase == "stopping"

    @property
    def ended(self) -> bool:
        """Whether its worker trains it no more."""
        return self.phase in ("ended", "taken")

    @property
    def taken(self) -> bool:
        """Whether another driver trains its steps."""
        return self.phase == "taken"

    @property
    def trained_to(self) -> Step:
        """The last step that was trained: its position, unless its trainer had ended before."""
        end = self.position if self.trainer_ended_at is None else self.trainer_ended_at
        return max(self.start, min(self.position, end))

    @property
    def workers(self) -> tuple[str, ...]:
        """Its own worker, and its lenders."""
        return self.worker, *self.lenders

    @property
    def has_begun(self) -> bool:
        """Whether its worker was seen to train it."""
        return self.begun or self.position > self.start

    def node_at(self, step: Step) -> Node:
        """Return the node on its way that holds `step`: start < step <= stop."""
        return self.leaf.holder(step)

    def covered(self) -> Iterator[Node]:
        """Yield the nodes that it shall train, the last first."""
        for node in self.node.up():
            yield node
            if node.start <= self.start:
                return


QUEUE_LENGTH = 2
"""Stages that a worker knows of at most: the one that runs and the next."""


@dataclass(slots=True)
class Slot:
    """A worker process of a compute class that runs one stage at a time."""

    worker: str
    kind: str = ""
    #: Empty if it is not known.
    host: str = ""
    #: The number of workers that had joined by then.
    number: int = 0
    queue: list[Attempt] = field(default_factory=list)
    #: The attempts, by id, that it trains as a lender: one, and those that carry that on.
    lent_to: dict[str, Attempt] = field(default_factory=dict)
    #: The node whose state it holds in memory.
    last: Node | None = None


LOOKAHEAD_SECONDS = 0.1
"""At least three times the 10 to 30 ms that an instruction needs to reach a worker through Dask.

The end of a stage is an estimate from the mean time of a step, and the driver receives the start of
a stage late.
"""

LOAD_SECONDS = 1.0
"""Seconds of loading a state before any was measured, so that no first change of worker is free.

This is an assumption; the first load that is measured replaces it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchOptions:
    """The options of a dispatcher's decisions.

    Parameters
    ----------
    attempt_prefix
        Makes attempt ids unique among drivers that know nothing of each other.
    saves
        Where running stages save their state on the way.
    lookahead_seconds
        How long before the end of a path the next one is chosen; more than an instruction takes
        to reach a worker, see `LOOKAHEAD_SECONDS`.
    load_seconds
        How long a worker needs to load a state that it does not hold, until that was measured:
        the price of a change of class at the border of a stage.
    merge
        Whether trials share the steps that they have in common.
    least_tries
        How often one step raises, at least, before its trials fail. Only trusted workers count.
    workers_tried
        Number of workers on which it raises before its trials fail, if there are as many.
    most_workers_tried
        The same number where those workers have not trained anything yet. Also how often a step
        raises on several workers together before its trials fail, whichever workers they are.
    losses_allowed
        How often one stage may be lost with its worker without getting any further, before
        its trials fail: then the stage itself kills its workers.
    """

    attempt_prefix: str = "a"
    needs: Needs = NO_NEEDS
    saves: SavePolicy = field(default_factory=SavePolicy)
    lookahead_seconds: float = 0.0
    load_seconds: float = 0.0
    merge: bool = True
    least_tries: int = 2
    workers_tried: int = 3
    most_workers_tried: int = 8
    losses_allowed: int = 4

    def with_prefix(self, attempt_prefix: str) -> DispatchOptions:
        """Return the same options with other attempt ids."""
        return replace(self, attempt_prefix=attempt_prefix)
