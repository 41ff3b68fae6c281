"""Which resumed stages are audited, and from which state: drawn from names, within a budget.

A stage that begins from a stored state is exact only if the trainer saves everything that its
next step depends on. An audit tests this on the study's own work: a new trainer loads a stored
state, trains on to a later one, and what it measures and saves is compared with what is stored.
It is a test because the stored states in between were made in another way: either the study's
trainer went on in memory where the audit loads, or the study loaded a state where the audit goes
on in memory.

A study audits the first resumes of all, the first one in each branch of its space (trials with the
same names and values of text at step 0), and the first one in the last third of the training: what
a trainer does in one branch only, or late, shows nowhere else. Which others are drawn follows from
state keys, and never from time: replays and other drivers draw the same. How many of those
fit in the budget follows also from measured seconds, since building a trainer and loading a state
may cost more than the steps. No decision, state or key depends on it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

from dasktune.graph.plan import Node, SearchPlan
from dasktune.types import Step

SHARE = 0.02
"""Share of the resumed stages that are audited, unless told otherwise."""

ALWAYS = 3
"""The first resumes of a study, which are drawn whatever the share is."""

SMALL_STUDY: Step = 1000
"""Trained steps up to which a study has one audit."""

SHARE_OF_STEPS = 0.02
"""The cost of all audits is at most this share of the trained steps of a larger study.

The cost of an audit is its seconds, in steps of the study. What is not measured in it, such as the
load of the driver and of the store, comes on top: audits are to cost less than 3% of the time.
"""

SHARE_OF_BUSY = SHARE_OF_STEPS / 2
"""The same, while every worker is busy: an audit on an idle one makes no stage wait."""

FIRST_STEPS = int(SMALL_STUDY * SHARE_OF_STEPS)
"""Most steps of the first audit of a study, as long as nobody knows whether it stays small."""

AUDIT_STEPS: Step = 30
"""How far audits go beyond the resume; those after the first wait until they may train as many.

A trainer may do something at every so many steps only. So audits go on for some steps, not
just to the next stored state, which may be a step away.
"""

ENOUGH_STEPS: Step = 8
"""How far the one audit of a small study goes beyond the resume, or it waits for the end.

A check of the trainer goes 7 steps: what that does not see shows later.
"""

MOST_BRANCHES = 20
"""Branches of the space whose first resume is drawn."""

LATE = "late"
"""Stands for the last third of the training, among branches."""

MOST_WAITING = 100
"""Drawn resumes that wait for the budget; of more, the first stay."""

MOST_STRETCHES = 10_000
"""Stretches trained in memory that are remembered; of more, the last stay."""

MOST_OPEN = 100
"""Stages that are remembered though the engine is done with them."""

MOST_SPLITS = 4
"""Steps at which a worker resumes to make sure of a difference: it holds a state for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """The steps that one trainer trained from a stored state to the next stored state.

    Parameters
    ----------
    node
        Holds `stop`, or is below the node that does.
    start, stop
        Steps.
    """

    node: Node
    start: Step
    stop: Step

    @property
    def steps(self) -> Step:
        """Number of its steps."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The steps that an audit trains, and the resumed stage on whose account it does.

    Parameters
    ----------
    resumed
        The stage that resumed, up to its first saved state.
    way
        The steps to train: from a stored state, or from step 0.
    is_whole
        Whether it would get no longer if more steps of its path were trained.
    origins
        See `origins_of`.
    """

    resumed: Stretch
    way: Stretch
    is_whole: bool
    origins: tuple[Step, ...] = ()

    @property
    def beyond(self) -> Step:
        """Number of steps after the step of the resume."""
        return self.way.stop - self.resumed.start


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditCounts:
    """The audits of a study so far.

    Parameters
    ----------
    resumes
        Number of stages that resumed from a stored state.
    audits
        Number of audits that came to a result.
    steps
        Number of steps trained by audits.
    seconds
        Seconds of their workers.
    """

    resumes: int = 0
    audits: int = 0
    steps: Step = 0
    seconds: float = 0.0


@dataclass(slots=True)
class TrainingTime:
    """The time that training takes on the workers of a run: sums over its stages."""

    steps: Step = 0
    seconds: float = 0.0
    starts: int = 0
    start_seconds: float = 0.0

    def add(self, *, steps: Step, seconds: float, start_seconds: float) -> None:
        """Count a stage; `start_seconds` are 0 if its trainer was in memory."""
        self.steps += steps
        self.seconds += seconds
        self.starts += start_seconds > 0
        self.start_seconds += start_seconds

    def in_steps(self, seconds: float) -> Step:
        """Return the number of steps that take so long, rounded up; 0 if that is not known."""
        return math.ceil(seconds * self.steps / self.seconds) if self.seconds else 0

    @property
    def start(self) -> Step:
        """The cost of a trainer that is built and loaded, in steps."""
        return self.in_steps(self.start_seconds / self.starts) if self.starts else 0


def audit_problems(audit: object) -> Iterator[str]:
    """Yield the problem of a share of audits."""
    is_number = isinstance(audit, int | float) and not isinstance(audit, bool)
    if not is_number or not 0 <= audit <= 1:  # type: ignore[operator]
        yield f"audit must be a number from 0 to 1, got {audit!r}"


def is_drawn(key: str, share: float, earlier: int) -> bool:
    """Whether a resumed stage is audited.

    Parameters
    ----------
    key
        The key of the first state that the stage saved.
    share
        Share of the resumed stages that are audited.
    earlier
        Number of stages of the study that resumed before it: the first `ALWAYS` are drawn
        unless the share is 0.

    Examples
    --------
    >>> sum(is_drawn(f"{number:x}", 0.25, earlier=3) for number in range(1000))
    265
    """
    if earlier < ALWAYS and share > 0:
        return True
    digest = hashlib.blake2b(f"audit {key}".encode(), digest_size=6).digest()
    return int.from_bytes(digest) < share * 2**48


def steps_allowed(
    *,
    trained: Step,
    spent: Step,
    audits: int,
    overhead: Step = 0,
    workers: int = 1,
    is_idle: bool = True,
    is_last: bool = False,
) -> Step:
    """Return how many steps the next audit may train.

    Parameters
    ----------
    trained
        Steps that the study has trained.
    spent
        Cost of its audits so far in steps, those under way included.
    audits
        Number of audits with a result or under way. A study of up to `SMALL_STUDY` steps has one.
    overhead
        Cost of an audit beside its steps, in steps.
    workers
        Number of workers. A run waits at its end for the audit under way, so none takes longer
        than its share of the time that all of them together have trained.
    is_idle
        Whether it makes no stage wait.
    is_last
        Whether no more will be trained.
    """
    total = int((SHARE_OF_STEPS if is_idle else SHARE_OF_BUSY) * trained) - spent
    allowed = min(total, int(SHARE_OF_STEPS * trained / max(1, workers))) - overhead
    is_small = trained <= SMALL_STUDY
    if not audits:
        first = AUDIT_STEPS if is_last and is_small else FIRST_STEPS
        return max(0, allowed, first - spent)
    return 0 if is_small or allowed < AUDIT_STEPS else allowed


def audit_of(resumed: Stretch, beside: Stretch | None, allowed: Step) -> Audit | None:
    """Return the audit of a resumed stage that goes furthest within what is allowed, or None.

    It goes on for `AUDIT_STEPS` steps after the step of the resume, as far as they are trained
    already. Of two that go as far, the shorter one is taken. One that has more steps than
    allowed is cut, unless it would be too short to show much.

    Parameters
    ----------
    resumed
        The stage.
    beside
        Steps that another trainer trained in memory from the state with which the stage began.
    allowed
        Most steps.
    """
    before = stored_before(resumed.node, resumed.start)
    ways = [Stretch(node=resumed.node, start=before, stop=resumed.stop)]
    if beside is not None:
        ways.append(beside)
    audits = [
        audit for way in ways if (audit := _lengthened(resumed, way, allowed=allowed)) is not None
    ]
    return max(audits, key=lambda audit: (audit.beyond, -audit.way.steps), default=None)


def _lengthened(resumed: Stretch, way: Stretch, *, allowed: Step) -> Audit | None:
    """Return the audit of a way, lengthened along what is trained already and cut to `allowed`."""
    end = resumed.start + AUDIT_STEPS
    node = _trained_below(way.node, end)
    stop = _last_known(node, resumed.start, end)
    if stop is None:
        return None
    is_whole = stop == end or (stop == node.stop and not node.children)
    if stop - way.start > allowed:
        if allowed < FIRST_STEPS:
            return None
        stop = _last_known(node, resumed.start, way.start + allowed)
        is_whole = True
        if stop is None:
            return None
    lengthened = Stretch(node=node, start=way.start, stop=stop)
    return Audit(resumed=resumed, way=lengthened, is_whole=is_whole)


def stored_before(node: Node, step: Step) -> Step:
    """Return the last step before `step` on the way to a node whose state is stored, or 0.

    It looks at the steps before it, one after the other; at all states of a node if these are few.
    """
    for above in node.up():
        stored, last = above.checkpoints, min(step - 1, above.stop)
        nearest = range(last, max(above.start, last - len(stored)), -1)
        near = next((at for at in nearest if at in stored), None)
        if near is None and last - above.start > len(stored):
            near = max((at for at in stored if at <= last), default=None)
        if near is not None:
            return near
    return 0


def measured_on(way: Stretch) -> list[Step]:
    """Return the steps of an audit whose metrics are known."""
    return sorted(_steps(way.node, way.start, way.stop, stored=False))


def stored_on(way: Stretch) -> list[Step]:
    """Return the steps of an audit whose states are stored."""
    return sorted(_steps(way.node, way.start, way.stop))


def steps_to_make_sure(trained: Step) -> Step:
    """Return how many steps each way may have that makes sure of a difference.

    That is beyond the budget of audits: a difference is rare, and decides much.
    """
    return max(SMALL_STUDY, int(SHARE_OF_STEPS * trained))


def origins_of(way: Stretch, loaded_at: Step | None, most: Step) -> list[Step]:
    """Return the steps from which a worker trains without a stop, to make sure of a difference.

    What a trainer holds beside its state can matter long after it was loaded. So the worker begins
    where the study's trainer was loaded. If that is not known, it begins where the audit did,
    at the stored state before, and at the first one.

    Parameters
    ----------
    way
        The steps of the audit.
    loaded_at
        The step at which the trainer was built or loaded that the study had in memory where the
        audit loads; None if that is not known.
    most
        Number of steps that may be trained from each.
    """
    first = max(0, way.stop - most)
    before = [step for step in (0, *_steps(way.node, 0, way.start - 1)) if first <= step]
    if loaded_at in before:
        return [loaded_at]
    earlier = {max(before), min(before)} if way.start and before else set()
    return [way.start, *sorted(earlier, reverse=True)]


def splits_of(audit: Audit) -> list[Step]:
    """Return the steps at which the study or the audit resumed, or may have resumed.

    The first ones are certain; the others are the last stored states.
    """
    certain = [audit.resumed.start, audit.way.start]
    others = [step for step in reversed(stored_on(audit.way)) if step not in certain]
    steps = dict.fromkeys([*certain, *others])
    return [step for step in steps if 0 < step < audit.way.stop][:MOST_SPLITS]


def resting_on(plan: SearchPlan, resumed: Stretch) -> list[int]:
    """Return the trials that go through the steps of a resumed stage, by number."""
    holder = resumed.node.holder(resumed.start + 1)
    return sorted(trial for trial, path in plan.paths.items() if holder in path.leaf.up())


class AuditDraw:
    """Draws the audits of a study from what its workers do.

    Parameters
    ----------
    share
        Share of the resumed stages that are audited.
    trained
        Steps that the study's earlier runs trained.
    counts
        Those of the study's earlier runs.

    Attributes
    ----------
    counts
        All so far.
    """

    def __init__(
        self, share: float, *, trained: Step = 0, counts: AuditCounts | None = None
    ) -> None:
        self.counts = counts or AuditCounts()
        self._share = share
        self._trained = trained
        self._time = TrainingTime()
        self._open: dict[str, _OpenStage] = {}
        self._in_memory: dict[str, _WentOn] = {}
        """By key of the state at its start: the shortest steps trained in memory from there."""
        self._waiting: dict[str, Stretch] = {}
        self._under_way: dict[str, Audit] = {}
        self._branches: set[str] = set()
        """The branches of the space in which a resume was drawn; ``late`` for the last third."""
        self._furthest: Step = 0
        self._has_news = False
        """Whether anything has changed since an audit was looked for in vain."""
        self._looked_at: Step = -1

    @property
    def waiting(self) -> int:
        """Number of drawn resumes whose audit has not begun."""
        return len(self._waiting)

    @property
    def remembered(self) -> int:
        """Number of stretches trained in memory, and of stages under way, that are remembered."""
        return len(self._in_memory) + len(self._open)

    @property
    def is_first(self) -> bool:
        """Whether the next audit is one of those that a study always has."""
        return self.counts.audits + len(self._under_way) < ALWAYS

    def launched(self, attempt: str, node: Node, start: Step) -> None:
        """Note a stage that was sent to a worker."""
        self._has_news = True
        ends = (each.stop for each in islice(node.below(), MOST_BRANCHES))
        self._furthest = max(self._furthest, *ends)
        self._open[attempt] = _OpenStage(node=node, start=start)

    def saved(self, attempt: str, step: Step) -> None:
        """Note a state that the stage's own trainer made, in the order of steps."""
        stage, self._has_news = self._open.get(attempt), True
        if stage is not None:
            stage.saved.append(step)
            self._follow(attempt, stage)

    def ended(
        self,
        attempt: str,
        step: Step,
        *,
        loaded_at: Step,
        seconds: float = 0.0,
        start_seconds: float = 0.0,
    ) -> None:
        """Note the end of a stage.

        Parameters
        ----------
        attempt, step
            Where it ended.
        loaded_at
            The step at which its trainer was built or loaded: earlier than its start if it began
            with a trainer in memory instead of a stored state.
        seconds, start_seconds
            Time spent in training and evaluation, and until the trainer was built and loaded.
        """
        stage, self._has_news = self._open.get(attempt), True
        if stage is not None:
            steps = step - stage.start
            self._time.add(steps=steps, seconds=seconds, start_seconds=start_seconds)
            stage.loaded_at, stage.end = loaded_at, step
            self._follow(attempt, stage)

    def lost(self, attempt: str) -> None:
        """Forget a stage of which nothing more will be heard, or that another driver trains."""
        self._open.pop(attempt, None)

    def keep(self, under_way: Collection[str]) -> None:
        """Forget the stages that are not under way any more, once they are many.

        Messages can be lost, also those of a worker that is gone.
        """
        if len(self._open) > 2 * len(under_way) + MOST_OPEN:
            self._open = {name: each for name, each in self._open.items() if name in under_way}

    def begin(
        self,
        trained: Step,
        *,
        workers: int = 1,
        is_idle: bool = True,
        is_last: bool = False,
        may_wait: Callable[[Audit], bool] = lambda audit: False,
    ) -> tuple[str, Audit] | None:
        """Return the name of the next audit within the budget, and the audit; or None.

        The one that goes furthest beyond its resume is taken, of several the shortest. One that
        can get longer waits for that, and so does the only one of a small study.

        Parameters
        ----------
        trained
            Steps that this run has trained so far.
        workers, is_idle, is_last
            See `steps_allowed`.
        may_wait
            Whether an audit waits for more idle workers: others go before it.
        """
        trained += self._trained
        has_news = self._has_news or is_last or trained > self._looked_at
        if not self._waiting or not has_news:
            return None
        self._has_news, self._looked_at = False, trained
        allowed = steps_allowed(
            trained=trained,
            spent=self._spent,
            audits=self.counts.audits + len(self._under_way),
            overhead=self._overhead,
            workers=workers,
            is_idle=is_idle,
            is_last=is_last,
        )
        if not allowed:
            return None
        least = 0 if is_last or trained > SMALL_STUDY else ENOUGH_STEPS
        possible = [
            (-audit.beyond, audit.way.steps, key, audit)
            for key, resumed in self._waiting.items()
            if (audit := self._audit_of(resumed, allowed)) is not None
            and (is_last or (audit.is_whole and audit.beyond >= least))
            and not may_wait(audit)
        ]
        if not possible:
            return None
        self._has_news = True  # there may be another
        *_, key, audit = min(possible, key=lambda each: each[:3])
        audit = self._with_origins(audit, steps_to_make_sure(trained))
        del self._waiting[key]
        self._under_way[key] = audit
        return key, audit

    @property
    def _overhead(self) -> Step:
        """Cost of an audit beside its steps, in steps.

        It builds and loads a trainer. So does the next stage of its worker: the trainer that this
        had in memory is gone.
        """
        return 2 * self._time.start

    @property
    def _spent(self) -> Step:
        """Cost of all audits in steps; of those under way, as expected."""
        under_way = (audit.way.steps + self._overhead for audit in self._under_way.values())
        counts = self.counts
        return max(counts.steps, self._time.in_steps(counts.seconds)) + sum(under_way)

    def end(self, key: str, steps: Step, *, has_result: bool, seconds: float = 0.0) -> None:
        """Note the end of an audit.

        Parameters
        ----------
        key
            Its name.
        steps
            Steps that it trained.
        has_result
            Whether it compared all that it was to compare; otherwise it was dropped.
        seconds
            Time that it took its worker.
        """
        self._has_news = True
        if self._under_way.pop(key, None) is not None:
            counts = self.counts
            self.counts = replace(
                counts,
                audits=counts.audits + has_result,
                steps=counts.steps + steps,
                seconds=counts.seconds + seconds,
            )

    def _audit_of(self, resumed: Stretch, allowed: Step) -> Audit | None:
        return audit_of(resumed, self._beside(resumed), allowed)

    def _with_origins(self, audit: Audit, most: Step) -> Audit:
        known = self._in_memory.get(audit.way.node.key_at(audit.way.start))
        loaded_at = None if known is None else known.loaded_at
        return replace(audit, origins=tuple(origins_of(audit.way, loaded_at, most)))

    def _beside(self, resumed: Stretch) -> Stretch | None:
        """Return the steps that another trainer went on from the same state, all in memory."""
        end = resumed.start + AUDIT_STEPS
        went_on = self._in_memory.get(resumed.node.key_at(resumed.start))
        if went_on is None:
            return None
        way = went_on.stretch
        while way.stop < end:
            following = self._in_memory.get(way.node.key_at(way.stop))
            if following is None:
                break
            next_stretch = following.stretch
            way = Stretch(node=next_stretch.node, start=way.start, stop=next_stretch.stop)
        return way

    def _follow(self, attempt: str, stage: _OpenStage) -> None:
        """Take the stretches of a stage, once it is known how its trainer began."""
        if stage.loaded_at is None:
            return
        for stretch in stage.take():
            if stretch.start > stage.loaded_at:
                self._went_on(stretch, stage.loaded_at)
            elif stage.start > 0:
                self._resumed(stretch)
        if stage.before >= stage.end:
            del self._open[attempt]

    def _went_on(self, stretch: Stretch, loaded_at: Step) -> None:
        key = stretch.node.key_at(stretch.start)
        known = self._in_memory.get(key)
        if known is None or stretch.steps < known.stretch.steps:
            self._in_memory[key] = _WentOn(stretch=stretch, loaded_at=loaded_at)
        if len(self._in_memory) > MOST_STRETCHES:
            del self._in_memory[next(iter(self._in_memory))]

    def _resumed(self, stretch: Stretch) -> None:
        earlier = self.counts.resumes
        self.counts = replace(self.counts, resumes=earlier + 1)
        key = stretch.node.key_at(stretch.stop)
        is_new = self._share > 0 and self._is_new(stretch)
        is_due = is_new or is_drawn(key, self._share, earlier)
        if is_due and len(self._waiting) < MOST_WAITING:
            self._waiting[key] = stretch

    def _is_new(self, stretch: Stretch) -> bool:
        """Return whether a resume is the first in its branch, or in the last third."""
        branches = {branch_of(stretch.node)} if len(self._branches) < MOST_BRANCHES else set()
        if stretch.start * 3 >= self._furthest * 2:
            branches.add(LATE)
        is_new = not branches <= self._branches
        self._branches |= branches
        return is_new


@dataclass(frozen=True, slots=True, kw_only=True)
class _WentOn:
    """Steps trained in memory, and the step at which their trainer was built or loaded."""

    stretch: Stretch
    loaded_at: Step


@dataclass(slots=True)
class _OpenStage:
    """A stage of which something is still to be heard.

    `before` is the last of its states that was taken note of, or its start.
    """

    node: Node
    start: Step
    loaded_at: Step | None = None
    end: Step = -1
    saved: list[Step] = field(default_factory=list)
    before: Step = field(init=False)

    def __post_init__(self) -> None:
        self.before = self.start

    def take(self) -> Iterator[Stretch]:
        """Yield the stretches between the states that were saved since the last call."""
        steps, self.saved = self.saved, []
        for step in steps:
            if step > self.before:
                yield Stretch(node=self.node, start=self.before, stop=step)
                self.before = step


def branch_of(node: Node) -> str:
    """Return the branch of the space to which the trials of a node belong.

    Trials of one branch have the same hyper-parameters, and the same of those that are no numbers.
    """
    values = {name: sequence(0) for name, sequence in sorted(node.sequences.items())}
    return repr([(n, v if isinstance(v, str | bool) else None) for n, v in values.items()])


def _trained_below(node: Node, step: Step) -> Node:
    """Return the node that holds `step`, or the last trained one on the way there.

    Where trials part, any trained way will do: the choice follows from the values alone.
    """
    while node.stop < step and _is_known(node, node.stop):
        below = [values for values in sorted(node.children) if _is_trained(node.children[values])]
        if not below:
            break
        node = node.children[below[0]]
    return node


def _is_trained(node: Node) -> bool:
    return bool(node.metrics or node.checkpoints)


def _is_known(node: Node, step: Step) -> bool:
    """Whether there is something to compare at a step of a node."""
    return step in node.metrics or step in node.checkpoints


def _last_known(node: Node, low: Step, high: Step) -> Step | None:
    """Return the last step in (low, high] with metrics or a state to compare, if any."""
    for above in node.up():
        for step in range(min(high, above.stop), max(low, above.start), -1):
            if _is_known(above, step):
                return step
        if above.start <= low:
            return None
    return None


def _steps(node: Node, low: Step, high: Step, *, stored: bool = True) -> Iterator[Step]:
    """Yield the steps in (low, high] on the way to a node with a stored state, or metrics."""
    for above in node.up():
        if above.stop <= low:
            return
        known = above.checkpoints if stored else above.metrics
        yield from (step for step in known if low < step <= high)
