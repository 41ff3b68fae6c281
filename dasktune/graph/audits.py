"""Which resumed stages are audited, and from which state.

A stage that begins from a stored state is exact only if the trainer saves everything that its
next step depends on. An audit tests this on the study's own work: a new trainer loads a stored
state, trains on to a later one, and what it measures and saves is compared with what is stored.
It is a test because the stored states in between were made in another way: either the study's
trainer went on in memory where the audit loads, or the study loaded a state where the audit goes
on in memory.

Which resumes are audited follows from their names (`is_drawn`), and never from time. How many of
those fit in the budget follows also from measured seconds (`steps_allowed`), since building a
trainer and loading a state may cost more than the steps. No decision, state or key depends on it.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from dasktune._numbers import real_of
from dasktune.graph.plan import Node, SearchPlan
from dasktune.types import Step

SHARE = 0.02
"""Share of the resumed stages that are audited, unless told otherwise."""

ALWAYS = 3
"""The first resumes of a study, which are drawn whatever the share is."""

SHARE_OF_STEPS = 0.02
"""The cost of all audits is at most this share of the trained steps, but for the first audit.

The cost of an audit is its seconds, in steps of the study. What is not measured in it, such as the
load of the driver and of the store, comes on top: audits are to cost less than 3% of the time.
"""

AUDIT_STEPS: Step = 30
"""How far audits go beyond the resume; those after the first wait until they may train as many.

A trainer may do something at every so many steps only. So audits go on for some steps, not
just to the next stored state, which may be a step away.
"""

SMALL_STUDY: Step = round(AUDIT_STEPS / SHARE_OF_STEPS)
"""Trained steps up to which a study has one audit."""

ENOUGH_STEPS: Step = 8
"""How far the one audit of a small study goes beyond the resume, or it waits for the end.

A check of the trainer goes 7 steps: what that does not see shows later.
"""

MOST_TO_MAKE_SURE: Step = 1000
"""Steps that each training may have that makes sure of a difference, or `SHARE_OF_STEPS` if more.

That is beyond the budget of audits: a difference is rare, and decides much.
"""

MOST_BRANCHES = 20
"""Branches of the space whose first resume is drawn."""

LATE = "late"
"""Stands for the last third of the training, among branches."""

MOST_WAITING = 30
"""Drawn resumes that wait for the budget; of more, the first stay."""

MOST_STAGES = 10_000
"""Stages that are remembered; of more, the last stay. Messages of a lost worker never come."""

MOST_SPLITS = 4
"""Steps at which a worker resumes to make sure of a difference: it holds a state for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Steps on the way to a node."""

    node: Node
    start: Step
    stop: Step

    @property
    def steps(self) -> Step:
        """Number of its steps."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """A stage that trained a node, or steps before it, from a state that was stored at a step."""

    node: Node
    step: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The steps that an audit trains, from a stored state or step 0, on account of a resume."""

    resume: Resume
    way: Stretch
    is_whole: bool
    """Whether it would get no longer if more steps of its path were trained."""
    origins: tuple[Step, ...] = ()
    """See `origins_of`."""

    @property
    def beyond(self) -> Step:
        """Number of steps after the step of the resume."""
        return self.way.stop - self.resume.step


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditCounts:
    """The audits of a study so far: those with a result, and what all have cost their workers."""

    resumes: int = 0
    audits: int = 0
    steps: Step = 0
    seconds: float = 0.0


# ---------------------------------------------------------------------------- the rule


def audit_problems(audit: object) -> Iterator[str]:
    """Yield the problem of a share of audits."""
    if not 0 <= real_of(audit) <= 1:
        yield f"audit must be a number from 0 to 1, got {audit!r}"


def is_drawn(key: str, share: float, *, earlier: int, is_new: bool = False) -> bool:
    """Return whether a resume is audited, if the budget allows it.

    Drawn are the first `ALWAYS` of a study, one that is new (`kinds_of`), and a share of the
    others by their state key; none if the share is 0.

    Examples
    --------
    >>> sum(is_drawn(f"{number:x}", 0.25, earlier=3) for number in range(1000))
    265
    """
    digest = hashlib.blake2b(f"audit {key}".encode(), digest_size=6).digest()
    is_due = earlier < ALWAYS or is_new or int.from_bytes(digest) < share * 2**48
    return is_due and share > 0


def kinds_of(resume: Resume, furthest: Step) -> set[str]:
    """Return the branch of the space, and ``late`` for a resume in the last third of the training.

    What a trainer does in one branch only, or late, shows nowhere else: so the first resume of
    each kind is audited. Trials of one branch have the same hyper-parameters, and the same of
    those that are no numbers.
    """
    values = {name: sequence(0) for name, sequence in sorted(resume.node.sequences.items())}
    branch = [(n, v if isinstance(v, str | bool) else None) for n, v in values.items()]
    return {repr(branch), LATE} if resume.step * 3 >= furthest * 2 else {repr(branch)}


def steps_allowed(
    *, trained: Step, spent: float, audits: int, overhead: float = 0.0, workers: int = 1
) -> Step:
    """Return how many steps the next audit may train in a study that has trained so many.

    `spent` is the cost of the audits so far, and `overhead` the cost of one beside its steps, both
    in steps. The first audit is done whatever it costs. A run waits at its end for the audit under
    way: so none takes longer than its share of the time that all workers together have trained.
    """
    budget = SHARE_OF_STEPS * trained
    allowed = int(min(budget - spent, budget / max(1, workers)) - overhead)
    if not audits:
        return max(0, allowed, int(AUDIT_STEPS - spent))
    return allowed if allowed >= AUDIT_STEPS else 0


# ----------------------------------------------------------------------------- the way


def audit_of(resume: Resume, beside: Node | None, allowed: Step) -> Audit | None:
    """Return the audit of a resume that goes furthest within what is allowed, or None.

    It begins at the stored state before; or at the state of the resume, if the trainer of another
    stage, on the way to the node `beside`, went on in memory there. It goes on for `AUDIT_STEPS`
    steps after the step of the resume, as far as they are trained already. Of two that go as far,
    the shorter one is taken.
    """
    audits = [_audit(resume, resume.node, stored_before(resume.node, resume.step), allowed)]
    if beside is not None:
        audits.append(_audit(resume, beside, resume.step, allowed))
    possible = [audit for audit in audits if audit is not None]
    return max(possible, key=lambda audit: (audit.beyond, -audit.way.steps), default=None)


def _audit(resume: Resume, node: Node, start: Step, allowed: Step) -> Audit | None:
    end = resume.step + AUDIT_STEPS
    node = _trained_below(node, end)
    stop = _last_known(node, resume.step, end)
    is_whole = stop == end or (stop == node.stop and not node.children)
    if stop is not None and stop - start > allowed:
        stop, is_whole = _last_known(node, resume.step, start + allowed), True
    if stop is None:
        return None
    return Audit(resume=resume, way=Stretch(node=node, start=start, stop=stop), is_whole=is_whole)


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


def origins_of(way: Stretch, loaded_at: Step | None, most: Step) -> list[Step]:
    """Return the steps from which a worker trains without a stop, to make sure of a difference.

    What a trainer holds beside its state can matter long after it was loaded. So the worker begins
    at `loaded_at`, where the trainer was loaded that the study had in memory where the audit loads.
    If that is not known, or more than `most` steps away, it begins where the audit did, at the
    stored state before, and at the first one.
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
    certain = [audit.resume.step, audit.way.start]
    others = [step for step in reversed(stored_on(audit.way)) if step not in certain]
    steps = dict.fromkeys([*certain, *others])
    return [step for step in steps if 0 < step < audit.way.stop][:MOST_SPLITS]


def resting_on(plan: SearchPlan, resume: Resume) -> list[int]:
    """Return the trials that go through the first step of a resumed stage, by number."""
    holder = resume.node.holder(resume.step + 1)
    return sorted(trial for trial, path in plan.paths.items() if holder in path.leaf.up())


# ------------------------------------------------------------------------- what happens


@dataclass(slots=True)
class _Stage:
    """A stage under way: where its trainer was loaded and ended, and whether a state is its own."""

    node: Node
    start: Step
    loaded_at: Step | None = None
    stop: Step = -1
    has_saved: bool = False

    def passes(self, node: Node, step: Step) -> bool:
        """Return whether its trainer went on in memory at a step on the way to a node."""
        is_within = self.loaded_at is not None and self.loaded_at < step < self.stop
        return is_within and self.node.holder(step) is node.holder(step)


@dataclass(slots=True)
class _Drawn:
    """A drawn resume, and the node to which another trainer went on in memory, if one did."""

    resume: Resume
    beside: Node | None


class AuditDraw:
    """Draws the audits of a study from what its workers do; `trained` steps and `counts` before."""

    def __init__(
        self, share: float, *, trained: Step = 0, counts: AuditCounts | None = None
    ) -> None:
        self.counts = counts or AuditCounts()
        """All so far."""
        self._share = share
        self._trained = trained
        self._steps: Step = 0
        self._seconds = 0.0
        """Steps and seconds of the stages of this run."""
        self._open: dict[str, _Stage] = {}
        self._in_memory: deque[_Stage] = deque(maxlen=MOST_STAGES)
        """Stages that have ended, whose trainers went on in memory."""
        self._waiting: dict[str, _Drawn] = {}
        self._under_way: dict[str, Audit] = {}
        self._kinds: set[str] = set()
        """The kinds of resumes that were drawn."""
        self._furthest: Step = 0

    @property
    def waiting(self) -> int:
        """Number of drawn resumes whose audit has not begun."""
        return len(self._waiting)

    @property
    def is_first(self) -> bool:
        """Whether the next audit is one of those that a study always has."""
        return self.counts.audits + len(self._under_way) < ALWAYS

    def launched(self, attempt: str, node: Node, start: Step) -> None:
        """Note a stage that was sent to a worker."""
        ends = (each.stop for each in islice(node.below(), MOST_BRANCHES))
        self._furthest = max(self._furthest, *ends)
        self._open[attempt] = _Stage(node=node, start=start)
        if len(self._open) > MOST_STAGES:
            del self._open[next(iter(self._open))]

    def saved(self, attempt: str) -> None:
        """Note a state that the stage's own trainer made."""
        if (stage := self._open.get(attempt)) is not None:
            stage.has_saved = True
            self._settle(attempt, stage)

    def ended(self, attempt: str, step: Step, *, loaded_at: Step, seconds: float = 0.0) -> None:
        """Note the end of a stage, and its seconds of training and evaluation.

        Its trainer was built or loaded at the step `loaded_at`, which is before its start if the
        trainer was in memory.
        """
        if (stage := self._open.get(attempt)) is not None:
            self._steps += step - stage.start
            self._seconds += seconds
            stage.loaded_at, stage.stop = loaded_at, step
            self._settle(attempt, stage)

    def lost(self, attempt: str) -> None:
        """Forget a stage of which nothing more will be heard, or that another driver trains."""
        self._open.pop(attempt, None)

    def possible(
        self, trained: Step, *, workers: int = 1, is_last: bool = False
    ) -> Iterator[tuple[str, Audit]]:
        """Yield the names of audits within the budget, and the audits, the best first.

        That is the one which goes furthest beyond its resume, of several the shortest. One that can
        get longer waits until nothing else is left to train, and so does a short one in a small
        study. `trained` are the steps of this run.
        """
        trained += self._trained
        allowed = self._allowed(trained, workers) if self._waiting else 0
        if not allowed:
            return
        least = 0 if trained > SMALL_STUDY else ENOUGH_STEPS
        audits = [
            (key, audit)
            for key, drawn in self._waiting.items()
            if (audit := audit_of(drawn.resume, drawn.beside, allowed)) is not None
            and (is_last or (audit.is_whole and audit.beyond >= least))
        ]
        most = max(MOST_TO_MAKE_SURE, int(SHARE_OF_STEPS * trained))
        audits.sort(key=lambda named: (-named[1].beyond, named[1].way.steps, named[0]))
        for key, audit in audits:
            yield key, self._with_origins(audit, most)

    def begin(self, key: str, audit: Audit) -> None:
        """Note that an audit was sent to a worker."""
        del self._waiting[key]
        self._under_way[key] = audit

    def end(self, key: str, steps: Step, *, has_result: bool, seconds: float = 0.0) -> None:
        """Note the steps and the seconds of an audit; without a result it was dropped."""
        if self._under_way.pop(key, None) is not None:
            counts = self.counts
            self.counts = replace(
                counts,
                audits=counts.audits + has_result,
                steps=counts.steps + steps,
                seconds=counts.seconds + seconds,
            )

    def _allowed(self, trained: Step, workers: int) -> Step:
        counts, cost = self.counts, float(self.counts.steps)
        if self._seconds:
            cost = max(cost, counts.seconds * self._steps / self._seconds)
        # An audit builds and loads a trainer. So does the next stage of its worker: the trainer
        # that this had in memory is gone.
        overhead = 2 * (cost - counts.steps) / max(1, counts.audits)
        under_way = sum(audit.way.steps + overhead for audit in self._under_way.values())
        return steps_allowed(
            trained=trained,
            spent=cost + under_way,
            audits=counts.audits + len(self._under_way),
            overhead=overhead,
            workers=workers,
        )

    def _with_origins(self, audit: Audit, most: Step) -> Audit:
        way = audit.way
        before = (each for each in self._in_memory if each.passes(way.node, way.start))
        loaded_at = next((each.loaded_at for each in before), None)
        return replace(audit, origins=tuple(origins_of(way, loaded_at, most)))

    def _settle(self, attempt: str, stage: _Stage) -> None:
        """Take a stage once it has ended with a state of its own."""
        if stage.loaded_at is None or not stage.has_saved:
            return
        del self._open[attempt]
        if stage.loaded_at + 1 < stage.stop:
            self._in_memory.append(stage)
            for drawn in self._waiting.values():
                if drawn.beside is None and stage.passes(drawn.resume.node, drawn.resume.step):
                    drawn.beside = stage.node
        if 0 < stage.start <= stage.loaded_at:
            self._resumed(Resume(node=stage.node, step=stage.start))

    def _resumed(self, resume: Resume) -> None:
        earlier, key = self.counts.resumes, resume.node.key_at(resume.step + 1)
        self.counts = replace(self.counts, resumes=earlier + 1)
        new = kinds_of(resume, self._furthest) - self._kinds
        if len(self._kinds) >= MOST_BRANCHES:
            new &= {LATE}
        if len(self._waiting) >= MOST_WAITING:
            return  # the next resume of a new kind is the first one that may be audited
        self._kinds |= new
        if is_drawn(key, self._share, earlier=earlier, is_new=bool(new)):
            passing = (each for each in self._in_memory if each.passes(resume.node, resume.step))
            beside = next((each.node for each in passing), None)
            self._waiting[key] = _Drawn(resume, beside)


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
