"""Jobs on simulated workers: the times of their steps, and their mishaps."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from dasktune.graph.events import RunStage
from dasktune.graph.plan import Node
from dasktune.needs import Offer
from dasktune.simulate.shared_pace import SharedDevice
from dasktune.traces.timing import Pace
from dasktune.types import Step


@dataclass(slots=True)
class SimulatedJob:
    """An attempt at a stage on a simulated worker.

    Parameters
    ----------
    first
        The step that it trains from: before the stage's start if it has to repeat steps.
    pace
        Times of its steps.
    stop
        The step at which it ends, as planned now.
    saves
        Steps before `stop` at which it saves its state.
    lead
        Seconds until its first step begins.
    save
        Seconds that saving a state delays it.
    dropped
        Time at which it is dropped, unless it has ended by then; else infinite.
    known
        The step up to which its values are known.
    saved
        The last step whose state it saved.
    version
        Counts its changes of plan: events of earlier plans are void.
    values
        Values of the metric that were not saved yet, by step.
    """

    order: RunStage
    first: Step
    launched: float
    pace: Pace
    stop: Step
    saves: tuple[Step, ...]
    lead: float = 0.0
    save: float = 0.0
    dropped: float = math.inf
    known: Step = 0
    saved: Step = 0
    version: int = 0
    values: dict[Step, float] = field(default_factory=dict)

    @property
    def workers(self) -> int:
        """Number of workers that train it."""
        return 1 + len(self.order.lenders)

    def time_of(self, step: Step) -> float:
        """Return the time at which `step` steps will have been trained."""
        at = self.launched + (self.lead + self.pace.between(self.first, step))
        if self.save:
            at += self.save * sum(self.first < save < step for save in self.saves)
        return at

    def due(self, step: Step) -> float:
        """Return the time of its message about a step: after the save, if it saves there."""
        is_saved = step == self.stop or step in self.saves
        return self.time_of(step) + self.save if is_saved else self.time_of(step)

    def position(self, now: float) -> Step:
        """Return the last step that is complete at `now`."""
        if self.time_of(self.stop) <= now:  # most jobs are asked at their ends
            return self.stop
        steps = range(self.first + 1, self.stop + 1)
        return self.first + bisect_right(steps, now, key=self.time_of)

    def steps_by(self, now: float) -> int:
        """Return the number of steps that it has trained by `now`."""
        return self.position(now) - self.first

    def brings(self, now: float) -> Step:
        """Return the step that runs now or has just ended: a step is never interrupted."""
        step = self.position(now)
        step += self.time_of(step) < now
        return min(self.stop, max(self.order.start + 1, step))

    def next_save(self, after: Step) -> Step:
        """Return the next step at which a state is saved, at last `stop`."""
        return min((step for step in self.saves if after < step < self.stop), default=self.stop)

    def next_progress(self, after: Step) -> Step:
        """Return the next step at which its worker reports its progress: 1, 2, 4, 8, ... steps."""
        return self.order.start + (1 << (after - self.order.start).bit_length())


@dataclass(frozen=True, slots=True)
class Held:
    """The state that a worker holds: `step` of a node, and the turn of its end."""

    node: Node
    step: Step
    turn: int

    @classmethod
    def after(cls, leaf: Node, step: Step, turn: int) -> Held:
        """Return the state at `step` on the path to a node."""
        node = next((node for node in leaf.up() if node.start < step), leaf)
        return cls(node, step, turn)


@dataclass(slots=True)
class Worker:
    """A simulated worker: its offer, its job or the job that it is lent to, and its queue."""

    name: str
    offer: Offer = field(default_factory=Offer)
    device: SharedDevice | None = None
    queue: deque[RunStage] = field(default_factory=deque)
    job: SimulatedJob | None = None
    held: Held | None = None
    lent_to: SimulatedJob | None = None

    @property
    def kind(self) -> str:
        """The name of its compute class."""
        return self.offer.kind


class Mishaps:
    """Draws for each job its slowness and the time at which it is dropped.

    Every job takes two random numbers, so that the stragglers stay the same if only `drop`
    changes.

    Parameters
    ----------
    straggling
        Standard deviation of z: a job takes ``1 + |z|`` times its expected time.
    drop
        Probability p that a job is dropped in any second of its expected time: a job of t
        seconds survives with probability ``(1 - p)**t``.

    References
    ----------
    Li et al., "A System for Massively Parallel Hyperparameter Tuning", appendix A.1, whose
    "probability that it is not dropped" is the probability of a drop.
    """

    def __init__(self, *, straggling: float = 0.0, drop: float = 0.0, seed: int = 0) -> None:
        self.drop = drop
        self._straggling = straggling
        self._rng = np.random.default_rng(seed)

    def draw(self, seconds: float) -> tuple[float, float]:
        """Return the factor of a job's time, and the seconds after which it is dropped.

        Parameters
        ----------
        seconds
            Expected time of the job. The moment of the drop, infinite for no drop, is in the
            multiplied time.
        """
        factor = 1.0 + abs(self._straggling * float(self._rng.standard_normal()))
        survived = self._survived(1.0 - float(self._rng.random()))
        return factor, survived * factor if survived < seconds else math.inf

    def survival(self, seconds: float) -> float:
        """Return the probability that a job of this expected time is not dropped.

        Examples
        --------
        >>> Mishaps(drop=0.5).survival(3.0)
        0.125
        """
        return float((1.0 - self.drop) ** seconds)

    def _survived(self, chance: float) -> float:
        """Return the seconds that a job survives with this chance, in (0, 1]."""
        return math.log(chance) / math.log1p(-self.drop) if self.drop else math.inf
