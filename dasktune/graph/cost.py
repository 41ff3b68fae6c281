"""The cost of a set of trials, known before anything runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from itertools import chain, repeat

from dasktune._lazy import method_of
from dasktune._words import counted
from dasktune.errors import ConfigurationError
from dasktune.graph.keys import root_key
from dasktune.graph.matching import Matching
from dasktune.graph.plan import Node, SearchPlan
from dasktune.graph.save_policy import SavePolicy
from dasktune.needs import NO_NEEDS, Needs, Offer
from dasktune.types import Sequences, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of training every trial to its maximum.

    Parameters
    ----------
    steps_requested
        Steps that all trials ask for together.
    steps_unique
        Steps that must be trained: one for each state that exists.
    critical_path
        Steps of the longest trial: no number of workers is faster.
    checkpoints
        States that are saved: where trials part or end, and by the save policy.
    bound_steps
        Lower bound on the wall time, in steps: the maximum over t of t plus the unique
        work deeper than t divided by the workers, and the longest path. Steps that are
        forced serially before depth t delay all that is deeper.
    state_nbytes
        Bytes of one state, if that is known; None if not.
    notes
        Sentences on what its user may not have meant.
    """

    trials: int
    steps_requested: int
    steps_unique: int
    critical_path: Step
    checkpoints: int
    workers: int
    bound_steps: float
    state_nbytes: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int | None:
        """Bytes of all checkpoints together; None without the bytes of a state."""
        return None if self.state_nbytes is None else self.checkpoints * self.state_nbytes

    @property
    def merge_rate(self) -> float:
        """Steps asked for by steps that must be trained: `p` [Hippo 6]."""
        return self.steps_requested / self.steps_unique if self.steps_unique else 1.0

    _repr_html_ = method_of("dasktune.report.notebook:cost_html")

    def __str__(self) -> str:
        share = self.steps_unique / self.steps_requested if self.steps_requested else 1.0
        ask = "asks" if self.trials == 1 else "ask"
        lines = [
            f"{counted(self.trials, 'trial')} {ask} for {counted(self.steps_requested, 'step')}; "
            f"{self.steps_unique:,} are unique ({share:.0%})",
            f"merge rate p = {self.merge_rate:.3f}"
            + ("" if self.merge_rate > 1 else ": nothing can merge in this space"),
            f"at least {counted(self.bound_steps, 'step')} of wall time "
            f"on {counted(self.workers, 'worker')}; "
            f"longest trial {counted(self.critical_path, 'step')}",
            counted(self.checkpoints, "checkpoint")
            + ("" if self.nbytes is None else f", {self.nbytes / 1e6:,.3g} MB"),
            *(f"note: {note}" for note in self.notes),
        ]
        return "\n".join(lines)


def cost_of(
    trials: Iterable[tuple[Sequences, Step]],
    *,
    workers: int,
    saves: SavePolicy | None = None,
    seeds: Iterable[int] = (),
    needs: Iterable[Needs] = (),
    offers: Iterable[Offer] = (),
) -> Cost:
    """Return the cost of training each of ``(sequences, steps)`` on a number of workers.

    Parameters
    ----------
    workers
        For the lower bound on the wall time.
    seeds
        The training seed of each trial: those of different seeds share nothing. All alike if
        empty.
    needs
        The needs of each trial, which a worker must meet; none if empty.
    offers
        What each of the workers has, for trials with needs.

    Raises
    ------
    ConfigurationError
        If there are no workers.
    """
    if workers < 1:
        raise ConfigurationError(f"workers must be >= 1, got {workers}")
    plan = SearchPlan(root_key("", 0))
    requested = count = longest = 0
    own = chain(needs, repeat(None))
    for (sequences, steps), seed, wanted in zip(trials, chain(seeds, repeat(0)), own, strict=False):
        plan.register(count, sequences, steps, seed, needs=wanted)
        requested, count, longest = requested + steps, count + 1, max(longest, steps)
    policy = saves or SavePolicy()
    nodes = list(plan)
    return Cost(
        trials=count,
        steps_requested=requested,
        steps_unique=sum(node.stop - node.start for node in nodes),
        critical_path=longest,
        checkpoints=sum(1 + len(policy.steps_of(node, node.start)) for node in nodes),
        workers=workers,
        bound_steps=_bound(nodes, workers, offers),
    )


def _bound(nodes: list[Node], workers: int, offers: Iterable[Offer]) -> float:
    """Return the least wall time, in steps, on workers with these offers.

    It is the largest bound of any set of workers that are able to run the same stages: for the
    stages that no other worker may run.
    """
    matching = Matching(NO_NEEDS)
    for number, offer in enumerate(offers):
        matching.join(str(number), offer)
    bound = tree_bound(nodes, workers)
    for able in {matching.able(node.needs) for node in nodes if node.needs}:
        bound_nodes = [node for node in nodes if node.needs and matching.able(node.needs) <= able]
        bound = max(bound, tree_bound(bound_nodes, max(1, len(able))))
    return bound


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyTrials:
    """The trials that one study would train.

    Parameters
    ----------
    trials
        Sequences and steps of each trial.
    seeds
        The training seed of each trial; all alike if empty.
    fingerprint
        Studies share states only if fingerprints are equal.
    notes
        See `Cost`.
    """

    trials: tuple[tuple[Sequences, Step], ...]
    seeds: tuple[int, ...] = ()
    fingerprint: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The cost of several studies that share their states.

    Parameters
    ----------
    steps_unique
        Steps that must be trained for all of them: one for each state that exists.
    """

    studies: tuple[Cost, ...]
    steps_unique: int

    @property
    def steps_requested(self) -> int:
        """Steps that all trials of all studies ask for together."""
        return sum(study.steps_requested for study in self.studies)

    @property
    def merge_rate(self) -> float:
        """Steps asked for by steps that must be trained, over all studies: `q` [Hippo 6]."""
        return self.steps_requested / self.steps_unique if self.steps_unique else 1.0

    _repr_html_ = method_of("dasktune.report.notebook:cost_html")

    def __str__(self) -> str:
        alone = sum(study.steps_unique for study in self.studies)
        rates = ", ".join(f"{study.merge_rate:.3f}" for study in self.studies)
        return (
            f"{len(self.studies):,} studies ask for {self.steps_requested:,} steps; "
            f"{self.steps_unique:,} are unique, {alone:,} if they shared nothing\n"
            f"merge rate q = {self.merge_rate:.3f}; p = {rates}"
            + ("" if self.steps_unique < alone else ": the studies have nothing in common")
        )


def costs_of(
    studies: Iterable[StudyTrials], *, workers: int, saves: SavePolicy | None = None
) -> Costs:
    """Return the cost of training every trial of several studies.

    Parameters
    ----------
    studies
        Their trials, each trained in full.
    workers, saves
        As for `cost_of`, of each study alone.
    """
    studies = tuple(studies)
    each = (
        replace(
            cost_of(study.trials, workers=workers, saves=saves, seeds=study.seeds),
            notes=study.notes,
        )
        for study in studies
    )
    _, unique = steps_together(
        ((study.fingerprint, seed), sequences, steps)
        for study in studies
        for (sequences, steps), seed in zip(
            study.trials, chain(study.seeds, repeat(0)), strict=False
        )
    )
    return Costs(studies=tuple(each), steps_unique=unique)


def steps_together(trials: Iterable[tuple[Hashable, Sequences, Step]]) -> tuple[int, int]:
    """Return how many steps trials ask for, and how many of them are unique.

    Parameters
    ----------
    trials
        What the trial starts from, its sequences and its steps. Trials share states only
        if they start from the same.
    """
    plans: dict[Hashable, SearchPlan] = defaultdict(lambda: SearchPlan(root_key("", 0)))
    requested = 0
    for number, (start, sequences, steps) in enumerate(trials):
        plans[start].register(number, sequences, steps)
        requested += steps
    return requested, sum(node.stop - node.start for plan in plans.values() for node in plan)


def tree_bound(nodes: Iterable[Node], workers: int) -> float:
    """Return the least wall time, in steps, of training these nodes on so many workers.

    The work deeper than t is piecewise linear in t and bends only where nodes start or
    end, so its maximum with t lies at one of those.
    """
    width: dict[Step, int] = defaultdict(int)
    for node in nodes:
        width[node.start] += 1
        width[node.stop] -= 1
    depths = sorted(width, reverse=True)
    bound = float(max(depths, default=0))
    deeper, last = 0.0, 0
    # Walking up from the deepest end: between two depths the number of nodes is constant.
    alive = 0
    for depth in depths:
        deeper += alive * (last - depth)
        bound = max(bound, depth + deeper / workers)
        alive -= width[depth]
        last = depth
    return bound
