"""Rungs and brackets of successive halving: the steps, and the number of trials at each.

All is integer or rational arithmetic. A logarithm in floating point loses a rung at exact
powers, such as 243 at eta 3 and 1000 at eta 10.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil
from typing import Final

from dasktune.algos.sampled import IF_SET, Options
from dasktune.errors import ConfigurationError, unknown
from dasktune.sequences.values import Arguments
from dasktune.types import Step

MOST_RUNGS: Final = 5
"""Rungs where no minimum says how many."""

BRACKET_SETS: Final[dict[str, tuple[int, ...] | None]] = {
    "standard": (0, 1, 2),
    "aggressive": (0,),
    "conservative": None,
}
"""Brackets by the name of their set; None for all."""


def rungs(
    max_steps: Step, min_steps: Step | None = None, eta: int = 4, most: int = MOST_RUNGS
) -> tuple[Step, ...]:
    """Return the steps at which trials are compared, ascending, the last one `max_steps`.

    With `min_steps` they are `min_steps` times the powers of `eta` below `max_steps`. Without,
    `max_steps` is divided by `eta` again and again and rounded down.

    Parameters
    ----------
    max_steps
        R: the step that the best are trained to.
    min_steps
        r: the step that every trial is trained to.
    eta
        One of `eta` trials is promoted.
    most
        The largest number of rungs without `min_steps`.

    Raises
    ------
    ConfigurationError
        If a number is too small, or `min_steps` above `max_steps`.

    References
    ----------
    Li et al., "A System for Massively Parallel Hyperparameter Tuning", Algorithm 1 (r_i)
    and section 5.1 (five rungs).

    Examples
    --------
    >>> rungs(120, min_steps=15), rungs(60)
    ((15, 60, 120), (3, 15, 60))
    """
    check = Arguments("rungs")
    lowest, max_steps = _range(check, min_steps, max_steps)
    eta = check.whole("eta", eta, at_least=2)
    most = check.whole("most", most)
    check.refuse()
    if lowest is None:
        steps = [max_steps]
        while steps[-1] >= eta and len(steps) < most:
            steps.append(steps[-1] // eta)
        return tuple(reversed(steps))
    powers = []
    while lowest < max_steps:
        powers.append(lowest)
        lowest *= eta
    return (*powers, max_steps)


def reachable(trials: int, min_steps: Step, eta: int) -> tuple[Step, ...]:
    """Return the rungs that so many trials can reach without another limit.

    They are ``r * eta**i`` for all ``eta**i <= trials``.

    References
    ----------
    Li et al., "A System for Massively Parallel Hyperparameter Tuning", section 3.3
    (infinite horizon).

    Examples
    --------
    >>> reachable(100, min_steps=2, eta=4)
    (2, 8, 32, 128)
    """
    steps, power = [min_steps], eta
    while power <= trials:
        steps.append(min_steps * power)
        power *= eta
    return tuple(steps)


def weight(count: int, eta: int) -> Fraction:
    """Return the weight of a bracket with `count` rungs when trials are split over brackets.

    It is the inverse of the average cost of a trial in the bracket, as a part of R:
    ``count / eta**(count - 1)``.

    References
    ----------
    Li et al., "A System for Massively Parallel Hyperparameter Tuning", section 5.1 (the
    inverse of r_s with a bar).

    Examples
    --------
    >>> weight(5, eta=4), weight(3, eta=4)
    (Fraction(256, 5), Fraction(16, 3))
    """
    return Fraction(eta ** (count - 1), count)


def allocate(trials: int, weights: Iterable[Fraction | float]) -> tuple[int, ...]:
    """Return `trials` split in proportion to `weights`, by the largest remainder.

    Examples
    --------
    >>> allocate(1000, [256 / 5, 64 / 4, 16 / 3])
    (706, 221, 73)
    """
    exact = [Fraction(weight) for weight in weights]
    quotas = [trials * weight / sum(exact) for weight in exact]
    shares = [int(quota) for quota in quotas]
    places = sorted(range(len(shares)), key=lambda place: shares[place] - quotas[place])
    for place in places[: trials - sum(shares)]:
        shares[place] += 1
    return tuple(shares)


HALVING_ONLY: Final = "brackets that halve nobody are left out"
"""The rule for the brackets of the standard set, as identities name it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracket:
    """A bracket: its rungs, and the number of trials that begin in it.

    Parameters
    ----------
    steps
        Its rungs, ascending: bracket s has the rungs from index s on.
    width
        Trials in its base rung.
    """

    steps: tuple[Step, ...]
    width: int

    def needs(self, eta: int) -> int:
        """Return the width with which one of its trials reaches the top rung."""
        needed: int = eta ** (len(self.steps) - 1)
        return needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Halving(Options):
    """The arguments of a tuner of this family, beside the number of trials.

    Parameters
    ----------
    max_steps
        R; None if only the number of trials limits how far they go.
    min_steps
        r; None if it follows from R.
    eta
        One of `eta` trials is promoted.
    brackets
        The numbers of the brackets that trials are split over; missing ones are left out.
        None for all.
    horizon
        ``"grows"`` if rungs are added on top when enough trials are; None if the rungs stay.
    kept
        `HALVING_ONLY` if a bracket with one rung is left out beside others; None if it is not.
    """

    max_steps: Step | None
    min_steps: Step | None
    eta: int
    brackets: tuple[int, ...] | None = (0,)
    horizon: str | None = field(default=None, metadata=IF_SET)
    kept: str | None = field(default=None, metadata=IF_SET)

    @classmethod
    def checked(
        cls,
        check: Arguments,
        *,
        trials: int,
        max_steps: Step | None,
        min_steps: Step | None,
        eta: int,
        brackets: str | Iterable[int] = "aggressive",
    ) -> Halving:
        """Return it with its arguments checked; `check` keeps the problems."""
        lowest, highest = None, None
        if max_steps is not None:
            lowest, highest = _range(check, min_steps, max_steps)
        elif min_steps is not None:
            lowest = check.whole("min_steps", min_steps)
        else:
            check.add("max_steps must be given, or min_steps, got neither")
        trials = check.whole("trials", trials)
        eta = check.whole("eta", eta, at_least=2)
        numbers = _numbers(check, brackets)
        halving = cls(
            max_steps=highest,
            min_steps=lowest,
            eta=eta,
            brackets=numbers,
            horizon="grows" if max_steps is None else None,
            kept=HALVING_ONLY if brackets == "standard" else None,
        )
        if not check.problems:
            try:
                halving.layout(trials)
            except ConfigurationError as error:
                for problem in error.problems:
                    check.add(problem)
        return halving

    def layout(self, trials: int) -> tuple[Bracket, ...]:
        """Return the brackets that so many trials are split over.

        Each must be wide enough for one of its trials to reach `max_steps`. Without
        `min_steps` the lowest rungs are left out until it is.

        Raises
        ------
        ConfigurationError
            If there are too few trials for `min_steps`, with the number that is enough, or
            none of the brackets exists.
        """
        if self.max_steps is None:
            return self._split(trials, reachable(trials, self.min_steps or 1, self.eta))
        steps = rungs(self.max_steps, self.min_steps, self.eta)
        while True:
            brackets = self._split(trials, steps)
            if self._are_wide(brackets):
                return brackets
            if self.min_steps is not None:
                raise ConfigurationError(self._too_few(trials, steps))
            steps = steps[1:]

    def advice(self, name: str, trials: int) -> Iterator[str]:
        """Yield a sentence if a third of a tuner's trials or more will probably reach `max_steps`.

        Examples
        --------
        >>> halving = Halving(max_steps=10, min_steps=None, eta=4, brackets=(0, 1, 2))
        >>> [sentence.split(",")[0] for sentence in halving.advice("ASHA", 20)]
        ['ASHA trains about 10 of 20 trials to step 10']
        """
        if self.max_steps is None:
            return
        full = self._in_full(trials)
        least = replace(self, brackets=(0,))._in_full(trials)
        if 3 * full < trials:
            return
        if least < full:
            yield (
                f"{name} trains about {full:,} of {trials:,} trials to step {self.max_steps:,}, "
                "since some brackets stop few or none; brackets='aggressive' trains about "
                f"{least:,}"
            )
        elif full == trials > 1:
            yield (
                f"{name} trains all {trials:,} trials to step {self.max_steps:,}: it stops some "
                f"only if there are more trials or steps, or with a smaller eta than {self.eta}"
            )

    def _in_full(self, trials: int) -> int:
        """Return how many trials are promoted to the top rung if all reports come in at once."""
        return sum(each.width // each.needs(self.eta) for each in self.layout(trials))

    def more(self, brackets: Sequence[Bracket], trials: int) -> tuple[Bracket, ...]:
        """Return the brackets with `trials` more, which are split like the first."""
        shares = self._shares(brackets, trials)
        return tuple(
            Bracket(steps=bracket.steps, width=bracket.width + share)
            for bracket, share in zip(brackets, shares, strict=True)
        )

    def _split(self, trials: int, steps: tuple[Step, ...]) -> tuple[Bracket, ...]:
        wanted = range(len(steps)) if self.brackets is None else self.brackets
        end = len(steps) if self.kept is None else max(1, len(steps) - 1)
        empty = [Bracket(steps=steps[at:], width=0) for at in wanted if at < end]
        if not empty:
            raise ConfigurationError(
                f"bracket {min(wanted)} must have rungs, got {len(steps)} in all ({_listed(steps)})"
            )
        return self.more(empty, trials)

    def _shares(self, brackets: Sequence[Bracket], trials: int) -> tuple[int, ...]:
        return allocate(trials, [weight(len(bracket.steps), self.eta) for bracket in brackets])

    def _are_wide(self, brackets: Iterable[Bracket]) -> bool:
        return all(bracket.width >= bracket.needs(self.eta) for bracket in brackets)

    def _too_few(self, trials: int, steps: tuple[Step, ...]) -> str:
        """Return the problem, with the least number of trials that is enough."""
        counts = [len(bracket.steps) for bracket in self._split(trials, steps)]
        # A share is n * eta**(k - 1) / k / (sum of weights) for k rungs: at least the width that
        # the bracket needs as soon as n reaches k times the sum. Rounding may need fewer.
        enough = ceil(max(counts) * sum(weight(count, self.eta) for count in counts))
        while self._are_wide(self._split(enough - 1, steps)):
            enough -= 1
        return (
            f"trials must be >= {enough} for one to reach max_steps in every bracket "
            f"(rungs {_listed(steps)}), got {trials}"
        )


def _range(check: Arguments, min_steps: Step | None, max_steps: Step) -> tuple[Step | None, Step]:
    before = len(check.problems)
    lowest = None if min_steps is None else check.whole("min_steps", min_steps)
    highest = check.whole("max_steps", max_steps)
    if lowest is not None and lowest > highest and len(check.problems) == before:
        check.add(f"min_steps must be <= max_steps ({highest}), got {lowest}")
    return lowest, highest


def _numbers(check: Arguments, brackets: str | Iterable[int]) -> tuple[int, ...] | None:
    if isinstance(brackets, str):
        if brackets not in BRACKET_SETS:
            check.add(unknown("bracket set", brackets, BRACKET_SETS))
        return BRACKET_SETS.get(brackets)
    if not isinstance(brackets, Iterable):
        check.add(f"brackets must be the name of a set or a list of ints, got {brackets!r}")
        return None
    given = tuple(brackets)
    numbers = tuple(check.whole("each of brackets", number, at_least=0) for number in given)
    if not numbers:
        check.add("brackets must be at least one, got none")
    if len(set(numbers)) < len(numbers):
        check.add(f"brackets must be distinct, got {list(given)}")
    return tuple(sorted(numbers))


def _listed(steps: Iterable[Step]) -> str:
    return ", ".join(map(str, steps))
