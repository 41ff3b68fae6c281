"""The stage tree: what must be trained now, made from the plan when asked [Hippo Alg. 1].

`build_stage_tree` is the algorithm from scratch. `dasktune.graph.frontier` keeps the same
tree incrementally; a property test holds the two equal after every event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from dasktune._lazy import method_of
from dasktune._words import counted
from dasktune.errors import ConfigurationError
from dasktune.graph.plan import Node, SearchPlan
from dasktune.types import Sequences, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Training of one state into a later one, to be run once for all trials that need it.

    Parameters
    ----------
    node
        Number of the plan's node that the stage belongs to.
    start, stop
        Steps; the stage trains step `start` up to, not including, `stop`. Equal for a
        stage that only evaluates a state.
    key, start_key
        State keys (hex) at `stop` and at `start`.
    parent
        Node of the stage that makes the state at `start`; None if that state exists.
    waits_for
        Node that is being trained now and makes the state at `start`; None otherwise.
    sequences
        The hyper-parameters, counted from step 0.
    """

    node: int
    start: Step
    stop: Step
    key: str
    start_key: str
    parent: int | None
    waits_for: int | None
    trials: int
    sequences: Sequences


RunStage = Callable[[Stage, object], object]
"""Trains one stage: (stage, result of its parent or None) -> result."""


@dataclass(frozen=True, slots=True)
class StageTree:
    """Stages by node number; parents come before their children.

    Parameters
    ----------
    run
        Trains one stage, for `to_dask`: (stage, result of its parent or None) -> result.
    """

    stages: Mapping[int, Stage]
    run: RunStage | None = field(default=None, compare=False)

    _repr_html_ = method_of("dasktune.report.notebook:stage_tree_html")

    def __repr__(self) -> str:
        return f"StageTree({counted(len(self), 'stage')}, {counted(self.steps, 'step')})"

    def __len__(self) -> int:
        return len(self.stages)

    def __iter__(self) -> Iterator[Stage]:
        return iter(self.stages.values())

    @property
    def steps(self) -> int:
        """Steps that all stages train together."""
        return sum(stage.stop - stage.start for stage in self)

    def children(self, node: int | None) -> tuple[Stage, ...]:
        """Return the stages that start from a stage's end (None: from states that exist)."""
        return tuple(stage for stage in self if stage.parent == node)

    def to_dask(self, run: RunStage | None = None) -> dict[str, tuple[object, ...]]:
        """Return a plain Dask graph with one key per stage.

        Any Dask scheduler runs it, also the synchronous one: for looking, debugging and
        small work. A key is ``stage-<state key>``.

        Parameters
        ----------
        run
            Trains one stage; gets the stage and its parent's result, None if the stage
            starts from a state that exists already. The tree's own if None.

        Raises
        ------
        ConfigurationError
            If a stage waits for one that a cluster is training now, or there is nothing
            that trains a stage.
        """
        run = self.run if run is None else run
        if run is None:
            raise ConfigurationError("to_dask needs a function that trains one stage, got None")
        graph: dict[str, tuple[object, ...]] = {}
        for stage in self:
            if stage.waits_for is not None:
                raise ConfigurationError(
                    f"stage {stage.key} waits for one that is being trained now; "
                    "make the graph while nothing runs"
                )
            before = None if stage.parent is None else dask_key(self.stages[stage.parent])
            graph[dask_key(stage)] = (_call, run, (_Literal(stage),), before)
        return graph


@dataclass(frozen=True, slots=True)
class _Literal:
    """A stage as a value, so that no scheduler looks for keys inside it."""

    stage: Stage


def _call(run: RunStage, stage: tuple[_Literal], before: object) -> object:
    return run(stage[0].stage, before)


def dask_key(stage: Stage) -> str:
    """Return the name of a stage in a Dask graph."""
    return f"stage-{stage.key}"


def build_stage_tree(plan: SearchPlan, is_running: Callable[[Node], bool]) -> StageTree:
    """Return the stages that must be trained for the plan's requests, computed from scratch.

    For each request, walk up to the nearest checkpoint or running stage; what lies
    between are stages [Hippo Algorithm 1, ``BuildStageTree``]. A request whose metrics
    are known needs nothing; one whose state is there but not its metrics needs a stage of
    zero steps that evaluates it.

    Parameters
    ----------
    is_running
        Whether a worker is making the state at a node's end.
    """
    needed: dict[int, tuple[Node, Step]] = {}
    for node in plan:
        if node.requests:
            _find_latest_checkpoint(node, is_running, needed)
    return stage_tree_of(needed.values(), is_running)


def _find_latest_checkpoint(
    node: Node, is_running: Callable[[Node], bool], needed: dict[int, tuple[Node, Step]]
) -> None:
    """Put the stages between `node` and its nearest checkpoint into `needed`."""
    for stage in node.up():
        if stage is not node and stage.stop in stage.starts:
            return
        if stage.number in needed or is_running(stage):
            return
        start = stage.stage_start
        needed[stage.number] = (stage, start)
        if start > stage.start or stage.is_alone:
            return


def stage_tree_of(
    needed: Iterable[tuple[Node, Step]], is_running: Callable[[Node], bool]
) -> StageTree:
    """Connect nodes that must be trained, each with the step it starts from, into a tree."""
    pairs = sorted(needed, key=lambda pair: (pair[1], pair[0].start, pair[0].number))
    numbers = {node.number for node, _ in pairs}
    stages: dict[int, Stage] = {}
    for node, start in pairs:
        parent, waits_for = None, None
        above = node.parent
        if above is not None and start == node.start and start not in above.checkpoints:
            parent = above.number if above.number in numbers else None
            waits_for = above.number if is_running(above) else None
        stages[node.number] = Stage(
            node=node.number,
            start=start,
            stop=node.stop,
            key=node.key_at(node.stop),
            start_key=node.key_at(start),
            parent=parent,
            waits_for=waits_for,
            trials=node.passing,
            sequences=node.sequences,
        )
    return StageTree(stages)
