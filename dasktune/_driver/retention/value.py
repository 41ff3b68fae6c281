"""The value of each stored state: what losing it is likely to cost.

A state is asked for by stages that start from it: stages that are wanted now, and the next stages
of trials that are paused or were never asked for. The chance of that comes from where each trial
stands, never from the age of the state. Live eviction and ``dasktune gc`` use the same values.

The figures of the constants are of simulated studies in small stores: the steps that they train
again with a constant changed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import nsmallest
from math import isfinite

from dasktune._driver.retention.listing import StoredState
from dasktune._engine.trials import TrialRecord, pareto_front
from dasktune.graph.keys import Mark
from dasktune.graph.plan import Node, NodeStep, SearchPlan
from dasktune.graph.view import RunView
from dasktune.storage.retention import Keep, State, unknown_state
from dasktune.types import Objective, Step, TrialState

GOES_ON = 0.9
"""Chance that a trial goes on: never asked for, or the best of those paused at its step."""

STEEPNESS = 4
"""How fast the chance falls with the rank at a step: a rung promotes few trials, from its top.

With the same chance for all ranks ASHA trains 4% more steps in a fifth of the room, and 8% more in
a twentieth; with a chance that falls linearly, 3% and 5% more.
"""

END = 0.02
"""Chance that a stage starts where trials end or part: with more steps, in another study.

With the chance of `INSIDE` here, ASHA trains as many steps. But if all its trials went on after it,
with room for 40 of 108 states, 45% of its steps would be trained again instead of 34%.
"""

INSIDE = 0.002
"""Chance that a stage starts in the middle of another: less than at its end.

Without both chances PBT trains 9% of its steps again instead of 5%, with room for 40 of 126 states.
"""

ENOUGH = 0.99
"""A chance so high that a higher one makes no difference."""

MOST_VISITED = 500
"""Nodes below a state that are looked at; those beyond count as nothing."""


class StateValues:
    """The values of the states of one study; good until its plan and trials change."""

    def __init__(
        self, view: RunView, trials: Mapping[int, TrialRecord], objective: Objective
    ) -> None:
        self._view = view
        self._trials = trials
        self._objective = objective
        self._ending: dict[Node, list[TrialRecord]] | None = None
        self._rungs: dict[Step, list[float]] | None = None
        self._seconds: dict[Node, float] = {}

    def states(self, sizes: Mapping[str, int], places: Mapping[str, NodeStep]) -> Iterator[State]:
        """Yield the states whose place in the plan is known, with their values; sizes are bytes."""
        keys = {(node.holder(step), step): key for key, (node, step) in places.items()}
        for (node, step), key in keys.items():
            above, above_step = _state_above(node, step, keys)
            yield State(
                key=key,
                nbytes=sizes[key],
                seconds=self._seconds_until(node, step) - self._seconds_until(above, above_step),
                chance=self.chance(node, step),
                above=keys.get((above, above_step)),
            )

    def chance(self, node: Node, step: Step) -> float:
        """Return the probability that a stage will start from a state."""
        is_inside = step < node.stop
        if any(later > step for later in node.checkpoints):
            return INSIDE  # stages that come this way start later
        own = INSIDE if is_inside else END
        below = [node] if is_inside else list(node.children.values())
        return 1 - (1 - own) * (1 - self._chance_below(below, is_inside))

    def _chance_below(self, nodes: list[Node], is_inside: bool) -> float:
        """Return the probability that one of the nodes is trained, or one below them."""
        view = self._view
        stack, missing, visited = list(nodes), 1.0, 0
        while stack and visited < MOST_VISITED and missing > 1 - ENOUGH:
            node = stack.pop()
            visited += 1
            if node.checkpoints and not (is_inside and node in nodes):
                continue
            if view.is_running(node):
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
            return GOES_ON
        rung = self._rung(trial.steps)
        rank = 1 - bisect_left(rung, self._loss(trial)) / len(rung)
        return GOES_ON * rank**STEEPNESS

    def _rung(self, step: Step) -> list[float]:
        """Return the losses of the trials that are paused at a step, in ascending order."""
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

    def _seconds_until(self, node: Node, step: Step) -> float:
        """Return the training time from the beginning to a step of a node."""
        missing = []
        above: Node | None = node.parent
        while above is not None and above not in self._seconds:
            missing.append(above)
            above = above.parent
        for ancestor in reversed(missing):
            before = 0.0 if ancestor.parent is None else self._seconds[ancestor.parent]
            steps = ancestor.stop - ancestor.start
            self._seconds[ancestor] = before + steps * self._view.seconds_per_step(ancestor)
        before = 0.0 if node.parent is None else self._seconds[node.parent]
        return before + (step - node.start) * self._view.seconds_per_step(node)


class StoreValues:
    """The values of all states of a store, to one study or to several together.

    A state that no study knows stays as long as it is younger than `grace`: another driver may be
    about to load it.
    """

    def __init__(self, stored: Mapping[str, StoredState], *, now: float, grace: float) -> None:
        self._stored = stored
        self._now = now
        self._grace = grace
        self._held: set[str] = set()
        self._states: dict[str, State] = {}

    def add(self, values: StateValues, places: Mapping[str, NodeStep]) -> list[State]:
        """Add the values of states to a study; return them.

        Where several studies know a state, their chances are joined. The way to it is the same.
        """
        sizes = {key: self._stored[key].nbytes for key in places}
        states = list(values.states(sizes, places))
        for state in states:
            known = self._states.get(state.key)
            if known is not None:
                chance = 1 - (1 - known.chance) * (1 - state.chance)
                state = replace(known, chance=chance, seconds=min(known.seconds, state.seconds))
            self._states[state.key] = state
        return states

    def hold(self, keys: Iterable[str]) -> None:
        """Keep states from eviction, whatever their values are."""
        self._held.update(keys)

    def states(self) -> list[State]:
        """Return all states with their values; if no study knows a state, its age decides."""
        known = [state.seconds for state in self._stored.values() if state.seconds]
        typical = sum(known) / len(known) if known else 1.0
        unknown = {
            key: unknown_state(
                key,
                state.nbytes,
                seconds=state.seconds or typical,
                age=self._now - state.used,
                grace=self._grace,
            )
            for key, state in self._stored.items()
            if key not in self._states
        }
        return [
            replace(state, stays=True) if state.key in self._held else state
            for state in (*self._states.values(), *unknown.values())
        ]


def winners(trials: Iterable[TrialRecord], objective: Objective, keep: Keep) -> list[TrialRecord]:
    """Return the trials whose last states are kept, the best first.

    With several objectives they are the first trials of the Pareto front.
    """
    candidates = [
        trial
        for trial in trials
        if trial.was_trained_here
        and trial.values is not None
        and trial.state is not TrialState.FAIL
    ]
    if keep.best is None:
        return candidates
    finite = [trial for trial in candidates if all(map(isfinite, trial.values or ()))]
    if keep.best and len(objective.metrics) > 1:
        return pareto_front(finite, objective)[: keep.best]
    return nsmallest(
        keep.best,
        finite,
        key=lambda trial: (objective.losses(trial.metrics(objective)), trial.number),
    )


Keyless = tuple[Node, Mark, list[Step]]
"""A node, the ascending steps of its states whose keys are to be computed, and the last known
position in the chain of keys before them."""


def keyless_in(plan: SearchPlan, placed: Container[NodeStep]) -> list[Keyless]:
    """Return the stored states that a plan knows, but those that are placed; nothing is hashed."""
    keyless = []
    for node in plan:
        steps = sorted(step for step in node.checkpoints if (node, step) not in placed)
        if steps:
            keyless.append((node, node.known_position(steps[0]), steps))
    return keyless


def places_of(keyless: Iterable[Keyless]) -> dict[str, NodeStep]:
    """Return the places of states by key; any thread may call it."""
    places = {}
    for node, (at, chain, _), steps in keyless:
        for step in steps:
            chain, at = chain.advance(node.sequences, at, step), step
            places[chain.key] = (node, step)
    return places


def mark(plan: SearchPlan, steps: Mapping[str, Step]) -> dict[str, NodeStep]:
    """Add stored states, given by key and step, to a plan; return the places of those on it."""
    places = {}
    known = sorted(set(steps.values()))
    for node in plan:
        for step, key in keys_on(node, known):
            if steps.get(key) == step:
                plan.learn(node, step, is_stored=True)
                places[key] = (node, step)
    return places


def keys_on(node: Node, steps: Sequence[Step]) -> Iterator[tuple[Step, str]]:
    """Yield those of the ascending steps that are on a node, with their state keys."""
    if node.parent is None:
        return
    first, last = bisect_right(steps, node.start), bisect_right(steps, node.stop)
    chain, at = node.parent.chain_at(node.start), node.start
    for step in steps[first:last]:
        chain, at = chain.advance(node.sequences, at, step), step
        yield step, chain.key


def _state_above(node: Node, step: Step, keys: Mapping[NodeStep, str]) -> NodeStep:
    """Return the place of the nearest stored state above a state, else the beginning."""
    limit = step
    while node.parent is not None:
        steps = [at for at in node.checkpoints if at < limit and (node, at) in keys]
        if steps:
            return node, max(steps)
        node = node.parent
        limit = node.stop + 1
    return node, 0
