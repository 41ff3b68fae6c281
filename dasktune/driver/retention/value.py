"""What the stored states of a study are worth, read off its plan and its trials.

A state is asked for by what begins where it ends: stages that are wanted now, trials that are
paused and may be promoted, trials that are known and not asked for yet. How likely that is
comes from where each trial stands, never from how old a state is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from heapq import nsmallest
from math import isfinite

from dasktune.engine.trials import TrialRecord, pareto_front
from dasktune.graph.plan import Node, Place, SearchPlan
from dasktune.graph.view import RunView
from dasktune.storage.retention import Keep, State
from dasktune.types import Objective, Step, TrialState

UNASKED = 0.8
"""Chance that a trial is asked for that is known and was not asked for yet."""

PAUSED = (0.9, 0.01)
"""Chance that a trial goes on which is paused: of the best there, and of the worst."""

STEEPNESS = 4
"""How fast it falls in between: few of a rung are promoted, and those from its top."""

AGAIN = 0.05
"""Chance that what is being trained now must be trained again: workers get lost."""

END = 0.02
"""Chance that someone begins where trials end or part: with more steps, in another study."""

INSIDE = 0.002
"""Chance that someone begins in the middle of a stage."""

OPEN = 0.1
"""From this chance on somebody is likely to ask."""

ENOUGH = 0.99
"""A chance of which it does not matter how much larger it is."""

MOST_VISITED = 500
"""Nodes below a state that are looked at; what is still unknown then counts as nothing."""


class Worth:
    """Says what states are worth as things stand; to be made anew when they have changed.

    Parameters
    ----------
    view
        Knows the plan, what is wanted, and who trains.
    trials
        The study's trials.
    objective
        What they are compared by.
    """

    def __init__(
        self, view: RunView, trials: Mapping[int, TrialRecord], objective: Objective
    ) -> None:
        self._view = view
        self._trials = trials
        self._objective = objective
        self._ending: dict[Node, list[TrialRecord]] | None = None
        self._rungs: dict[Step, list[float]] | None = None
        self._seconds: dict[Node, float] = {}

    def states(
        self,
        sizes: Mapping[str, int],
        places: Mapping[str, Place],
        stays: Iterable[str],
    ) -> Iterator[State]:
        """Yield what those states are worth whose place is known.

        Parameters
        ----------
        sizes
            Bytes by key.
        places
            Where they lie.
        stays
            Keys of those that must not go.
        """
        kept = set(stays)
        at = {(place[0].holder(place[1]), place[1]): key for key, place in places.items()}
        for (node, step), key in at.items():
            above, above_step = _before(node, step, at)
            yield State(
                key=key,
                nbytes=sizes[key],
                seconds=self._until(node, step) - self._until(above, above_step),
                chance=self.chance(node, step),
                above=at.get((above, above_step)),
                stays=key in kept,
            )

    def chance(self, node: Node, step: Step) -> float:
        """Return the probability that a state is asked for: by itself, or by what begins there."""
        inside = step < node.stop
        if any(later > step for later in node.checkpoints):
            return INSIDE  # whoever comes this way begins later
        own = INSIDE if inside else END
        below = [node] if inside else list(node.children.values())
        return 1 - (1 - own) * (1 - self._chance_below(below, inside))

    def _chance_below(self, nodes: list[Node], inside: bool) -> float:
        """Return the probability that one of the stages is trained that begin at a state."""
        view = self._view
        stack, missing, visited = list(nodes), 1.0, 0
        while stack and visited < MOST_VISITED and missing > 1 - ENOUGH:
            node = stack.pop()
            visited += 1
            if node.checkpoints and not (inside and node in nodes):
                continue
            if view.is_running(node):
                missing *= 1 - AGAIN
                continue
            if view.is_waiting(node):
                return 1.0
            for trial in self._trials_at(node):
                missing *= 1 - self._chance_of(trial)
            stack.extend(node.children.values())
        return 1 - missing

    def _trials_at(self, node: Node) -> list[TrialRecord]:
        """Return the trials that are not finished and end at a node."""
        if self._ending is None:
            self._ending = defaultdict(list)
            paths = self._view.plan.paths
            for number, trial in self._trials.items():
                if not trial.state.is_finished and number in paths:
                    self._ending[paths[number].leaf].append(trial)
        return self._ending.get(node, [])

    def _chance_of(self, trial: TrialRecord) -> float:
        """Return the probability that a trial goes on."""
        if trial.state is TrialState.RUNNING:
            return 1.0
        if trial.values is None:
            return UNASKED
        rung = self._rung(trial.steps)
        best, worst = PAUSED
        behind = 1 - bisect_left(rung, self._loss(trial)) / len(rung)
        return worst + (best - worst) * behind**STEEPNESS

    def _rung(self, step: Step) -> list[float]:
        """Return the losses of the trials that are paused at a step, in order."""
        if self._rungs is None:
            self._rungs = defaultdict(list)
            for trial in self._trials.values():
                if trial.state is TrialState.PAUSED and trial.values is not None:
                    self._rungs[trial.steps].append(self._loss(trial))
            for losses in self._rungs.values():
                losses.sort()
        return self._rungs[step]

    def _loss(self, trial: TrialRecord) -> float:
        return self._objective.losses(trial.metrics(self._objective))[0]

    def _until(self, node: Node, step: Step) -> float:
        """Return the seconds that training takes from nothing to a step of a node."""
        missing = []
        above: Node | None = node.parent
        while above is not None and above not in self._seconds:
            missing.append(above)
            above = above.parent
        for one in reversed(missing):
            before = 0.0 if one.parent is None else self._seconds[one.parent]
            self._seconds[one] = before + (one.stop - one.start) * self._pace(one)
        before = 0.0 if node.parent is None else self._seconds[node.parent]
        return before + (step - node.start) * self._pace(node)

    def _pace(self, node: Node) -> float:
        return self._view.seconds_per_step(node)


def winners(trials: Iterable[TrialRecord], objective: Objective, keep: Keep) -> list[TrialRecord]:
    """Return the trials whose last states stay, the best first.

    With several objectives they are the first ones that no other trial beats in all.
    """
    found = [
        one
        for one in trials
        if one.was_trained_here and one.values is not None and one.state is not TrialState.FAIL
    ]
    if keep.best is None:
        return found
    finite = [one for one in found if all(map(isfinite, one.values or ()))]
    if keep.best and len(objective.metrics) > 1:
        return pareto_front(finite, objective)[: keep.best]
    return nsmallest(
        keep.best, finite, key=lambda one: (objective.losses(one.metrics(objective)), one.number)
    )


def places_in(plan: SearchPlan, keys: Container[str]) -> dict[str, Place]:
    """Return where states lie in a plan that knows of them, by key."""
    found = {}
    for node in plan:
        for step, key in _keys_on(node, sorted(node.checkpoints)):
            if key in keys:
                found[key] = (node, step)
    return found


def mark(plan: SearchPlan, steps: Mapping[str, Step]) -> dict[str, Place]:
    """Let a plan know of states, given by key and step; return where those of it lie."""
    found = {}
    known = sorted(set(steps.values()))
    for node in plan:
        first, last = bisect_right(known, node.start), bisect_right(known, node.stop)
        for step, key in _keys_on(node, known[first:last]):
            if steps.get(key) == step:
                plan.learn(node, step, is_stored=True)
                found[key] = (node, step)
    return found


def _keys_on(node: Node, steps: Iterable[Step]) -> Iterator[tuple[Step, str]]:
    """Yield the keys at steps of a node, which ascend."""
    if node.parent is None:
        return
    chain, at = node.parent.chain_at(node.start), node.start
    for step in steps:
        chain, at = chain.advance(node.sequences, at, step), step
        yield step, chain.key


def _before(node: Node, step: Step, at: Mapping[Place, str]) -> Place:
    """Return the nearest place above a state that is stored, else the beginning."""
    limit = step
    while node.parent is not None:
        known = [one for one in node.checkpoints if one < limit and (node, one) in at]
        if known:
            return node, max(known)
        node = node.parent
        limit = node.stop + 1
    return node, 0
