"""Population based training: the worse members of a population go on as copies of the better."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from operator import attrgetter
from typing import Any, Literal, cast

import numpy as np

from dasktune.algos.base import check_horizon
from dasktune.algos.pbt_explore import Exploring, fixed_coordinates
from dasktune.algos.sampled import Budget, Options, SampledTuner
from dasktune.sequences import Sequence
from dasktune.sequences.values import Arguments
from dasktune.space import MOST_GRID_POINTS, Configuration
from dasktune.space.define_by_run import AnySpace, Definition, space_of
from dasktune.types import Decision, Extend, Finish, Register, Report, Step, Stop, Value

ROUNDS = 30
"""Comparisons of a member with its population unless `every` is given, as Li et al. had."""

_CHILD = 1
"""Separates the draws for a child from those for a sampled trial."""


@dataclass(slots=True)
class Member:
    """A trial and its descent; in JSON a row of its fields.

    Attributes
    ----------
    population
        The number of its population.
    point
        Its configuration since it was born.
    parent, born
        The trial that it shares its first `born` steps with; None and 0 for a sampled one.
    step
        The step of its last report; `born` before the first.
    state
        Whether it is trained, waits for slower members, or has no more reports.
    """

    population: int
    point: Mapping[str, Value]
    parent: int | None = None
    born: Step = 0
    step: Step = 0
    state: Literal["training", "waiting", "ended", "failed"] = "waiting"

    @property
    def is_living(self) -> bool:
        """Whether it may be trained further."""
        return self.state in ("training", "waiting")

    def to_json(self) -> list[object]:
        """Return its fields."""
        return list(_FIELDS(self))

    @classmethod
    def from_json(cls, row: list[Any]) -> Member:
        """Return the member of such a row."""
        return cls(*row)


_FIELDS = attrgetter(*Member.__slots__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PBTOptions(Options):
    """The arguments of `PBT`."""

    population: int
    every: Step
    truncation: float
    perturb: tuple[float, ...]
    resample: float
    fixed: frozenset[str]
    populations: int
    window: Step | None

    def share(self, count: int) -> int:
        """Return how many of `count` are the top, and the bottom; exact for 0.2 of 5."""
        return int(Fraction(repr(self.truncation)) * count)

    def check(self, check: Arguments, trials: object) -> None:
        """Add to `check` the problems of options that are each of the right type."""
        if not 0 < self.truncation <= 0.5:
            check.add(f"truncation must be > 0 and <= 0.5, got {self.truncation}")
        elif self.share(self.population) == 0:
            check.add(
                f"population must be >= {math.ceil(1 / self.truncation)} with truncation "
                f"{self.truncation}, got {self.population}"
            )
        if not self.perturb or any(factor <= 0 or factor == 1 for factor in self.perturb):
            check.add(f"perturb must be factors > 0 other than 1, got {list(self.perturb)}")
        if not 0 <= self.resample <= 1:
            check.add(f"resample must be >= 0 and <= 1, got {self.resample}")
        if self.window is not None and self.window < self.every:
            check.add(f"window must be >= every, which is {self.every}, got {self.window}")
        if isinstance(trials, int) and trials < self.population:
            check.add(f"trials must be >= population, which is {self.population}, got {trials}")


class PBT(SampledTuner):
    """Population based training with truncation selection.

    A population is sampled. Its members report at every multiple of `every`, and no member
    waits for another (but see `window`). Members are compared at equal steps: of the m that
    have reported at step n so far, the best and the worst ``floor(truncation * m)`` are the
    top and the bottom of n. They are looked at with each report, so that no member is
    replaced before ``1 / truncation`` have reported at n. A member in the bottom at the step of
    its last report is stopped, even while it is trained further, and a new trial, its child,
    takes its place. A donor is drawn from the top. The child has the donor's hyper-parameters
    up to step n, and therefore its state there. From n on it has those of the donor's
    configuration after a change: each coordinate is drawn again with probability `resample`,
    else perturbed (see `dasktune.algos.pbt_explore.Exploring`). Its schedules do not begin
    anew: they go on from step n. Its first report is at ``n + every``.

    An infinite loss is the worst, and never a donor's. A member that fails after a report of
    its own is replaced like a member in the bottom of its last step; a failed one is no donor.

    The paper's test whether half of a population is better than guessing is left out: it
    needs the value of a guess.

    A child is a trial like any other: its `sequences`, run alone, give the same model. Its
    `params` are those that it goes on with.

    Parameters
    ----------
    space, max_steps, seed
        As for `dasktune.algos.sampled.SampledTuner`. A child has the same hyper-parameters as
        its donor: values that decide which others exist are never changed.
    population
        Members of each population; at least ``1 / truncation``.
    every
        Steps from one comparison to the next; None for a thirtieth of `max_steps`.
    trials
        The largest number of trials, children included; after the last one no member is
        replaced. None: as many as there can be, one for each member and comparison.
    truncation
        Share of the members that is the bottom, and the top; at most 1/2.
    perturb
        Factors for numbers, equally likely.
    resample
        Probability that a coordinate is drawn again rather than perturbed.
    fixed
        Names of hyper-parameters and coordinates (of suggestions, if a function defines the
        space) that children inherit unchanged. Values that change the shape of the model
        belong here: a state cannot be loaded into a model of another shape.
    populations
        The number of populations. The next one is sampled when a worker would otherwise have
        nothing to do; where workers are scarce, earlier populations go first.
    window
        Most steps that a member may be ahead of the slowest living member of its population;
        then it waits. At least `every`; None for no limit.
    sampler
        Proposes the members that are sampled; None draws at random. It observes no child.

    Raises
    ------
    ConfigurationError
        If a number is out of its range, a name in `fixed` is unknown, or a sequence ends
        before `max_steps`.

    References
    ----------
    Jaderberg et al., "Population Based Training of Neural Networks", section 3 and
    algorithm 1. Li et al., "A System for Massively Parallel Hyperparameter Tuning", appendix
    A.3, for the selection, the exploration, `populations` and `window`.
    """

    growing = False
    state = ("_populations", "_members", "_ranked")
    options: PBTOptions
    _populations: int
    """The number of populations that have begun."""
    _members: list[Member]
    _ranked: dict[tuple[int, Step], list[tuple[float, int]]]
    """By population and step: (loss, trial) from the best to the worst."""

    def __init__(
        self,
        space: AnySpace | Definition,
        *,
        population: int = 25,
        max_steps: Step,
        every: Step | None = None,
        trials: int | None = None,
        truncation: float = 0.2,
        perturb: Iterable[float] = (1.2, 0.8),
        resample: float = 0.25,
        fixed: Collection[str] = (),
        populations: int = 1,
        window: Step | None = None,
        seed: int = 0,
        sampler: object = None,
    ) -> None:
        check = Arguments(type(self).__name__)
        space = space_of(space)
        budget = Budget.checked(check, 1 if trials is None else trials, max_steps, seed)
        every = max(1, budget.max_steps // ROUNDS) if every is None else every
        options = PBTOptions(
            population=check.whole("population", population),
            every=check.whole("every", every),
            truncation=check.real("truncation", truncation),
            perturb=tuple(check.real("perturb", factor) for factor in perturb),
            resample=check.real("resample", resample),
            fixed=fixed_coordinates(space, fixed),
            populations=check.whole("populations", populations),
            window=None if window is None else check.whole("window", window),
        )
        if trials is None:
            rounds = math.ceil(budget.max_steps / options.every)
            most = options.population * options.populations * rounds
            budget = replace(budget, trials=min(most, MOST_GRID_POINTS))
        if not check.problems:
            options.check(check, budget.trials)
        super().__init__(space, budget, options, sampler=sampler, check=check)

    # --------------------------------------------------------------- the protocol of tuners

    def begin(self) -> None:
        """Begin without a population."""
        self._populations = 0
        self._members = []
        self._ranked = {}

    def derive(self) -> None:
        """Set the living members and their sequences, which follow from the points."""
        self._living: list[set[int]] = [set() for _ in range(self._populations)]
        self._sequences: list[Mapping[str, Sequence]] = []
        for trial, member in enumerate(self._members):
            own = self.space.at(member.point)
            is_sampled = member.parent is None
            self._sequences.append(own.sequences if is_sampled else self._inherited(member, own))
            if member.is_living:
                self._living[member.population].add(trial)

    @property
    def configurations(self) -> None:
        """None: the configurations of children depend on losses."""
        return None

    @property
    def most_queued(self) -> int:
        """As many queued points as sampled members."""
        return min(self.trials, self.options.population * self.options.populations)

    @property
    def to_begin(self) -> int:
        """The members of populations that have not begun; a child takes the place of a member."""
        size = self.options.population
        return size * min(self.options.populations - self._populations, self.left // size)

    def ask(self, capacity: int) -> list[Decision]:
        """Return a new population: the first, or one for workers that have nothing to do."""
        if self._all_begun or (self._living and not capacity):
            return []
        number = self._populations
        self._populations += 1
        self._living.append(set())
        registers: list[Decision] = []
        for _ in range(self.options.population):
            drawn = self.draw()
            member = Member(population=number, point=drawn.point)
            self._add(member, self.space.at(drawn.point).sequences)
            registers.append(drawn)
        return [*registers, *self._go_on(number)]

    def tell(self, report: Report) -> list[Decision]:
        """Return the decisions after a report; the sampler gets those of sampled members."""
        return super().tell(report) if self._is_sampled(report.trial) else self.on_report(report)

    def tell_failure(self, trial: int) -> list[Decision]:
        """Return the decisions after a failure; the sampler gets those of sampled members."""
        return super().tell_failure(trial) if self._is_sampled(trial) else self.on_failure(trial)

    def on_report(self, report: Report) -> list[Decision]:
        """Extend the member, and put children in the places of those in the bottom."""
        trial, member = report.trial, self._members[report.trial]
        if member.state != "training":
            return []
        member.step, member.state = report.step, "waiting"
        insort(self._ranked_at(member), (report.loss, trial))
        if report.step >= self.max_steps:
            self._end(trial, "ended")
            return self._go_on(member.population)
        decisions: list[Decision] = []
        for bottom in self._bottom(member):
            child = self._child_at(self._members[bottom])
            if child is not None:
                self._end(bottom, "ended")
                decisions += [Stop(trial=bottom), child]
        return [*decisions, *self._go_on(member.population)]

    def on_failure(self, trial: int) -> list[Decision]:
        """Put a child in the place of a member that has reported since its birth."""
        member = self._members[trial]
        if not member.is_living:
            return []
        self._end(trial, "failed")
        child = self._child_at(member) if member.step > member.born else None
        return [*([child] if child else []), *self._go_on(member.population)]

    # --------------------------------------------------------------------------- members

    @property
    def _all_begun(self) -> bool:
        return self.to_begin == 0

    def _is_sampled(self, trial: int) -> bool:
        return self._members[trial].parent is None

    def _ranked_at(self, member: Member) -> list[tuple[float, int]]:
        """Return (loss, trial) of all that have reported at the step of a member."""
        return self._ranked.setdefault((member.population, member.step), [])

    def _bottom(self, member: Member) -> list[int]:
        """Return the living members in the bottom of a member's step that are still there."""
        ranked = self._ranked_at(member)
        worst = [trial for _, trial in ranked[len(ranked) - self.options.share(len(ranked)) :]]
        return [
            trial
            for trial in worst
            if self._members[trial].is_living and self._members[trial].step == member.step
        ]

    def _add(self, member: Member, sequences: Mapping[str, Sequence]) -> None:
        self._living[member.population].add(len(self._members))
        self._members.append(member)
        self._sequences.append(sequences)

    def _end(self, trial: int, state: Literal["ended", "failed"]) -> None:
        member = self._members[trial]
        member.state = state
        self._living[member.population].remove(trial)

    def _go_on(self, population: int) -> list[Decision]:
        """Extend the members that need not wait any longer; finish if none is left."""
        living = sorted((self._members[trial].step, trial) for trial in self._living[population])
        decisions: list[Decision] = []
        for step, trial in living:
            member = self._members[trial]
            until = min(step + self.options.every, self.max_steps)
            window = self.options.window
            in_window = window is None or until <= living[0][0] + window
            if member.state == "waiting" and in_window:
                member.state = "training"
                decisions.append(Extend(trial=trial, until=until, priority=float(-population)))
        if self._all_begun and not any(self._living):
            decisions.append(Finish())
        return decisions

    def _child_at(self, member: Member) -> Register | None:
        """Return the child that replaces a member at its step, if it has a donor."""
        ranked = self._ranked.get((member.population, member.step), [])
        donors = [
            trial
            for loss, trial in ranked[: self.options.share(len(ranked))]
            if loss < math.inf and self._members[trial].state != "failed"
        ]
        if not donors or not self.left:
            return None
        rng = np.random.default_rng((self.seed, self.registered, _CHILD))
        donor = donors[int(rng.integers(len(donors)))]
        configuration = self._explored(self._members[donor].point, rng)
        child = Member(
            population=member.population,
            point=configuration.point,
            parent=donor,
            born=member.step,
            step=member.step,
        )
        sequences = self._inherited(child, configuration)
        self._add(child, sequences)
        # Of a model that is searched apart, the child has the rank of the model of its donors.
        ancestor = donor
        while (parent := self._members[ancestor].parent) is not None:
            ancestor = parent
        model_rank = self.source.model_rank(ancestor)
        return self.register(configuration, sequences, model_rank=model_rank)

    def _explored(self, point: Mapping[str, Value], rng: np.random.Generator) -> Configuration:
        options = self.options
        exploring = Exploring(
            point, rng, factors=options.perturb, resample=options.resample, fixed=options.fixed
        )
        explored, old = self.space.pick(exploring), self.space.at(point)
        if explored.problem or explored.sequences.keys() != old.sequences.keys():
            return old
        check_horizon((explored,), self.max_steps)
        return explored

    def _inherited(self, child: Member, configuration: Configuration) -> dict[str, Sequence]:
        """Return the sequences of a child: its parent's, then those of its configuration."""
        parent, born = cast(int, child.parent), child.born
        before = self.space.at(self._members[parent].point).sequences
        sequences = {}
        for name, old in self._sequences[parent].items():
            new = configuration.sequences[name]
            # An unchanged sequence needs no joint: the parent goes on with it, too.
            sequences[name] = old if before[name] == new else old[:born] >> new[born:]
        return sequences
