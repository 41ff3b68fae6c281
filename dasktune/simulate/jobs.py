"""Jobs on simulated workers: which step is reached when."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field

from dasktune.graph.events import RunStage
from dasktune.graph.plan import Node
from dasktune.traces.timing import Pace
from dasktune.types import Step


@dataclass(slots=True)
class Job:
    """An attempt at a stage that a simulated worker is at.

    Parameters
    ----------
    order
        What it was told.
    first
        The step that it trains from: before the stage's start where it does again what no
        worker holds.
    launched
        When it began.
    pace
        What its steps take.
    stop
        Where it ends, as far as is known.
    saves
        Steps at which it saves its state on the way.
    lead
        Seconds until its first step begins.
    save
        Seconds for which saving a state holds it up.
    dropped
        When it is dropped, unless it has ended by then; infinite if it is not.
    known
        The step up to which its values are known.
    saved
        The last step whose state it saved.
    version
        Counts its changes of plan: what was due before the last one is void.
    values
        Values of the metric that were looked up and not saved yet, by step.
    """

    order: RunStage
    first: Step
    launched: float
    pace: Pace
    stop: Step
    saves: set[Step]
    lead: float = 0.0
    save: float = 0.0
    dropped: float = math.inf
    known: Step = 0
    saved: Step = 0
    version: int = 0
    values: dict[Step, float] = field(default_factory=dict)

    def time_of(self, step: Step) -> float:
        """Return when `step` steps will have been trained."""
        at = self.launched + (self.lead + self.pace.between(self.first, step))
        if self.save:
            at += self.save * sum(self.first < one < step for one in self.saves)
        return at

    def due(self, step: Step) -> float:
        """Return when it says that it has reached a step: once it goes on from a state it saves."""
        is_saved = step == self.stop or step in self.saves
        return self.time_of(step) + self.save if is_saved else self.time_of(step)

    def position(self, now: float) -> Step:
        """Return the last step that has been trained in whole by `now`."""
        steps = range(self.first + 1, self.stop + 1)
        return self.first + bisect_right(steps, now, key=self.time_of)

    def steps_by(self, now: float) -> int:
        """Return how many steps it has trained by `now`."""
        return self.position(now) - self.first

    def brings(self, now: float) -> Step:
        """Return the step that it is in, or has just ended: a step is never cut short."""
        step = self.position(now)
        step += self.time_of(step) < now
        return min(self.stop, max(self.order.start + 1, step))

    def next_save(self, after: Step) -> Step:
        """Return the next step at which a state is saved; the last one is `stop`."""
        return min((step for step in self.saves if after < step < self.stop), default=self.stop)


@dataclass(frozen=True, slots=True)
class Held:
    """The state that a worker was left with: `step` of a node, and the turn it was made in."""

    node: Node
    step: Step
    turn: int

    @classmethod
    def after(cls, leaf: Node, step: Step, turn: int) -> Held:
        """Return the state at `step` on the way to a node."""
        node = next((node for node in leaf.up() if node.start < step), leaf)
        return cls(node, step, turn)


@dataclass(slots=True)
class Worker:
    """A simulated worker: the job it is at, and what it is to do after it."""

    name: str
    queue: deque[RunStage] = field(default_factory=deque)
    job: Job | None = None
    held: Held | None = None
