"""Population based training: the worse members of a population go on as copies of the better."""

from __future__ import annotations

import math
from bisect import insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, cast

import numpy as np

from dasktune.algos.base import check_horizon
from dasktune.algos.pbt_explore import Exploring, fixed_coordinates
from dasktune.algos.sampled import SampledTuner
from dasktune.errors import ConfigurationError
from dasktune.sequences import Sequence
from dasktune.sequences.values import Arguments
from dasktune.space import MOST_GRID_POINTS, Configuration
from dasktune.space.define_by_run import AnySpace, Definition, space_of
from dasktune.types import Decision, Extend, Finish, Register, Report, Step, Stop, Value

ROUNDS = 30
"""Comparisons of a member with its population unless `every` is given, as Li et al. had."""

_CHILD = 1
"""Sets the draws for a child apart from those for a trial that is sampled."""


@dataclass(slots=True, kw_only=True)
class Member:
    """A trial and its descent.

    Attributes
    ----------
    population
        Which.
    point
        The configuration it goes on with since it was born.
    parent, born
        The trial whose first `born` steps are its own; None and 0 for one that was sampled.
    step
        Its last report, or `born` before the first.
    state
        Whether it is trained, waits for slower members, or takes no more reports.
    """

    population: int
    point: Mapping[str, Value]
    parent: int | None = None
    born: Step = 0
    step: Step = 0
    state: Literal["training", "waiting", "ended", "failed"] = "waiting"


class PBT(SampledTuner):
    """Population based training with truncation selection.

    A population is sampled; its members report at every multiple of `every`, and no member
    waits for another (but see `window`). Members are compared at equal steps: of the m that
    have reported at step n so far, the best and the worst ``floor(truncation * m)`` are the
    top and the bottom there, looked at with each report; so nobody is replaced before
    ``1 / truncation`` have come to n. Who comes first is not spared: a member that turns out
    to be at the bottom of the step of its last report is stopped, also while it is trained
    further, and a new trial, its child, takes its place. A donor is drawn from the top. The
    child has the donor's hyper-parameters up to step n, which makes it the donor's state
    there, and from n on those of the donor's configuration after a change: each coordinate is
    drawn again with probability `resample`, else perturbed (see
    `dasktune.algos.pbt_explore.Exploring`). A schedule is not begun anew: the child follows its
    new one from step n on. A child's first report is at ``n + every``.

    An infinite loss is the worst, and never a donor's. A member that fails after a report of
    its own is replaced like one at the bottom of its last step; a failed one is no donor.

    The paper's trick to sample until half of a population is better than guessing is left
    out: it needs to be told what guessing is.

    A child is a trial like any other: its `sequences`, run alone, give the same model. Its
    `params` are those that it goes on with.

    Parameters
    ----------
    space
        What to draw from: a `dasktune.Space`, or a function that defines one by running. A
        child has the hyper-parameters that its donor has: what decides which others exist
        is never changed.
    population
        Members of each population; at least ``1 / truncation``.
    max_steps
        How far members are trained.
    every
        Steps from one comparison to the next; None for a thirtieth of `max_steps`.
    trials
        How many trials there may be in all, children included. After the last one nobody is
        replaced. None: as many as there can be, one a member and comparison.
    truncation
        Share of the members that is the bottom, and the top; at most 1/2.
    perturb
        Factors for numbers, equally likely.
    resample
        Probability that a coordinate is drawn again rather than perturbed.
    fixed
        Names of hyper-parameters and coordinates (of what is suggested, if a function
        defines the space) that children inherit unchanged. Whatever changes the shape of
        the model belongs here: a state cannot be loaded into another.
    populations
        How many populations are trained. The next one is sampled when a worker would have
        nothing to do otherwise; where work is scarce, earlier populations go first.
    window
        Steps that a member may be ahead of the slowest living one of its population: it
        waits before it would be further. At least `every`; None for no limit.
    seed
        Decides what is drawn; it has nothing to do with the seed of the training.
    sampler
        Proposes the members that are sampled; None draws at random. It hears of no child.

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
        # It is for the base to say what is wrong with `max_steps`.
        steps = Arguments("").whole("max_steps", max_steps)
        self.every = check.whole("every", max(1, steps // ROUNDS) if every is None else every)
        self.population = check.whole("population", population)
        self.populations = check.whole("populations", populations)
        self.window = None if window is None else check.whole("window", window)
        self.truncation = check.real("truncation", truncation)
        self.perturb = tuple(check.real("perturb", factor) for factor in perturb)
        self.resample = check.real("resample", resample)
        self.fixed = fixed_coordinates(space, fixed)
        if trials is None:
            most = self.population * self.populations * math.ceil(steps / self.every)
            trials = min(most, MOST_GRID_POINTS)
        if not check.problems:
            self._check(check, trials)
        super().__init__(
            space,
            trials=trials,
            max_steps=max_steps,
            seed=seed,
            sampler=sampler,
            check=check,
            more={
                "population": self.population,
                "every": self.every,
                "truncation": self.truncation,
                "perturb": list(self.perturb),
                "resample": self.resample,
                "fixed": sorted(self.fixed),
                "populations": self.populations,
                "window": self.window,
            },
        )

    def _check(self, check: Arguments, trials: int) -> None:
        if not 0 < self.truncation <= 0.5:
            check.add(f"truncation must be > 0 and <= 0.5, got {self.truncation}")
        elif self._share(self.population) == 0:
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

    # ------------------------------------------------------------------- what a kind must do

    def begin(self) -> None:
        """There is no population yet."""
        self._members: list[Member] = []
        self._sequences: list[Mapping[str, Sequence]] = []
        self._living: list[set[int]] = []
        # By population and step: (loss, trial) from the best to the worst.
        self._ranked: dict[tuple[int, Step], list[tuple[float, int]]] = defaultdict(list)

    @property
    def configurations(self) -> None:
        """None: what children try depends on losses."""
        return None

    @property
    def most_queued(self) -> int:
        """As many queued points as there are members that are sampled."""
        return min(self.trials, self.population * self.populations)

    def ask(self, capacity: int) -> list[Decision]:
        """Return a new population, the first or one for workers that have nothing to do."""
        if self._all_begun or (self._living and not capacity):
            return []
        number = len(self._living)
        self._living.append(set())
        found: list[Decision] = []
        for _ in range(self.population):
            drawn = self.draw()
            member = Member(population=number, point=drawn.point)
            self._add(member, self.space.at(drawn.point).sequences)
            found.append(drawn)
        return [*found, *self._go_on(number)]

    def tell(self, report: Report) -> list[Decision]:
        """Return what follows from a report; a sampler hears only of what it proposed."""
        return super().tell(report) if self._is_sampled(report.trial) else self.told(report)

    def tell_failure(self, trial: int) -> list[Decision]:
        """Return what follows from a failure; a sampler hears only of what it proposed."""
        return super().tell_failure(trial) if self._is_sampled(trial) else self.failed(trial)

    def told(self, report: Report) -> list[Decision]:
        """Let the member go on, and put children in the places of those at the bottom."""
        trial, member = report.trial, self._members[report.trial]
        if member.state != "training":
            return []
        member.step, member.state = report.step, "waiting"
        insort(self._ranked[member.population, report.step], (report.loss, trial))
        if report.step >= self.max_steps:
            self._end(trial, "ended")
            return self._go_on(member.population)
        found: list[Decision] = []
        for bottom in self._bottom(member.population, report.step):
            child = self._child_at(self._members[bottom])
            if child is not None:
                self._end(bottom, "ended")
                found += [Stop(trial=bottom), child]
        return [*found, *self._go_on(member.population)]

    def failed(self, trial: int) -> list[Decision]:
        """Put a child in the place of a member that has come further than it began."""
        member = self._members[trial]
        if member.state not in ("training", "waiting"):
            return []
        self._end(trial, "failed")
        child = self._child_at(member) if member.step > member.born else None
        return [*([child] if child else []), *self._go_on(member.population)]

    # --------------------------------------------------------------------------- members

    @property
    def _all_begun(self) -> bool:
        return len(self._living) == self.populations or self.left < self.population

    def _is_sampled(self, trial: int) -> bool:
        return self._members[trial].parent is None

    def _share(self, count: int) -> int:
        """Return how many of `count` are the top, and the bottom; exact for 0.2 of 5."""
        return int(Fraction(repr(self.truncation)) * count)

    def _bottom(self, population: int, step: Step) -> list[int]:
        """Return the living members at the bottom of a step that have not come further."""
        ranked = self._ranked[population, step]
        worst = ranked[len(ranked) - self._share(len(ranked)) :]
        living = self._living[population]
        return [one for _, one in worst if one in living and self._members[one].step == step]

    def _add(self, member: Member, sequences: Mapping[str, Sequence]) -> None:
        self._living[member.population].add(len(self._members))
        self._members.append(member)
        self._sequences.append(sequences)

    def _end(self, trial: int, state: Literal["ended", "failed"]) -> None:
        member = self._members[trial]
        member.state = state
        self._living[member.population].remove(trial)

    def _go_on(self, population: int) -> list[Decision]:
        """Extend every member that waits and need not any more; finish if none is left."""
        living = sorted(self._living[population], key=lambda one: (self._members[one].step, one))
        found: list[Decision] = []
        for trial in living:
            member = self._members[trial]
            until = min(member.step + self.every, self.max_steps)
            slowest = self._members[living[0]].step
            in_window = self.window is None or until <= slowest + self.window
            if member.state == "waiting" and in_window:
                member.state = "training"
                found.append(Extend(trial=trial, until=until, priority=float(-population)))
        if self._all_begun and not any(self._living):
            found.append(Finish())
        return found

    def _child_at(self, member: Member) -> Register | None:
        """Return the child that takes a member's place at its step; None if there can be none."""
        ranked = self._ranked[member.population, member.step]
        donors = [
            trial
            for loss, trial in ranked[: self._share(len(ranked))]
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
        self.registered += 1
        return Register(
            trial=self.registered - 1,
            sequences=sequences,
            max_steps=self.max_steps,
            params=configuration.params,
            point=configuration.point,
            domains=configuration.domains,
        )

    def _explored(self, point: Mapping[str, Value], rng: np.random.Generator) -> Configuration:
        exploring = Exploring(
            point, rng, factors=self.perturb, resample=self.resample, fixed=self.fixed
        )
        found, old = self.space.pick(exploring), self.space.at(point)
        if found.sequences.keys() != old.sequences.keys():
            return old
        check_horizon((found,), self.max_steps)
        return found

    def _inherited(self, child: Member, configuration: Configuration) -> dict[str, Sequence]:
        """Return the sequences of a child: its parent's, then those of its configuration."""
        parent, n = cast(int, child.parent), child.born
        before = self.space.at(self._members[parent].point).sequences
        return {
            # What did not change needs no joint: the parent goes on with it, too.
            name: old if before[name] == new else old[:n] >> new[n:]
            for (name, old), new in (
                (item, configuration.sequences[item[0]]) for item in self._sequences[parent].items()
            )
        }

    # ----------------------------------------------------------------------------- state

    def state_json(self) -> dict[str, object]:
        """Return the members and what they reported; sequences follow from the points."""
        return {
            "populations": len(self._living),
            "members": [
                [one.population, dict(one.point), one.parent, one.born, one.step, one.state]
                for one in self._members
            ],
            "ranked": [
                [*at, [[loss if loss < math.inf else None, trial] for loss, trial in ranked]]
                for at, ranked in self._ranked.items()
            ],
        }

    def take_state_json(self, state: Mapping[str, object]) -> None:
        """Take over the members and what they reported."""
        match state:
            case {"populations": int(count), "members": list(members), "ranked": list(ranked)}:
                self.begin()
                self._living = [set() for _ in range(count)]
                for one in members:
                    self._restore_member(*one)
                for population, step, entries in ranked:
                    self._ranked[population, step] = [
                        (math.inf if loss is None else loss, trial) for loss, trial in entries
                    ]
            case _:
                raise ConfigurationError(f"not the state of this tuner: {state!r}")

    def _restore_member(
        self,
        population: int,
        point: Mapping[str, Value],
        parent: int | None,
        born: Step,
        step: Step,
        state: Literal["training", "waiting", "ended", "failed"],
    ) -> None:
        member = Member(
            population=population, point=point, parent=parent, born=born, step=step, state=state
        )
        own = self.space.at(point)
        self._add(member, own.sequences if parent is None else self._inherited(member, own))
        if state in ("ended", "failed"):
            self._living[population].remove(len(self._members) - 1)
