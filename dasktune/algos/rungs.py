"""Rungs and brackets of successive halving: how far trials go, and how many begin where.

All is integer or rational arithmetic. A logarithm in floating point loses a rung at exact
powers, such as 243 at eta 3 and 1000 at eta 10.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Final

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
"""Brackets by the name of their set; None stands for all there are."""


def rungs(
    max_steps: Step, min_steps: Step | None = None, eta: int = 4, most: int = MOST_RUNGS
) -> tuple[Step, ...]:
    """Return the steps at which trials are compared, ascending, `max_steps` the last.

    With `min_steps` they are that times the powers of `eta`, as far as they are below
    `max_steps`. Without, `max_steps` is divided by `eta` again and again and rounded down.

    Parameters
    ----------
    max_steps
        R: how far the best are trained.
    min_steps
        r: how far every trial is trained.
    eta
        One of this many is promoted.
    most
        Rungs at most, where there is no `min_steps`.

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
    found = [max_steps]
    if lowest is None:
        while found[-1] >= eta and len(found) < most:
            found.append(found[-1] // eta)
        return tuple(reversed(found))
    powers = []
    while lowest < max_steps:
        powers.append(lowest)
        lowest *= eta
    return (*powers, max_steps)


def reachable(trials: int, min_steps: Step, eta: int) -> tuple[Step, ...]:
    """Return the rungs that `trials` can reach where nothing else limits them.

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
    found, power = [min_steps], eta
    while power <= trials:
        found.append(min_steps * power)
        power *= eta
    return tuple(found)


def weight(count: int, eta: int) -> Fraction:
    """Return the share of a bracket with `count` rungs, in proportion to those of others.

    It is the inverse of what a trial of the bracket costs on average, as part of R:
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
    exact = [Fraction(one) for one in weights]
    quotas = [trials * one / sum(exact) for one in exact]
    found = [int(quota) for quota in quotas]
    places = sorted(range(len(found)), key=lambda place: found[place] - quotas[place])
    for place in places[: trials - sum(found)]:
        found[place] += 1
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracket:
    """A bracket: its rungs, and how many trials begin in it.

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
        """Return how wide it must be for one of its trials to reach the top rung."""
        needed: int = eta ** (len(self.steps) - 1)
        return needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Halving:
    """What a tuner of this family is asked for, beside the number of trials.

    Parameters
    ----------
    max_steps
        R; None where nothing but the number of trials limits how far they go.
    min_steps
        r; None where R says it.
    eta
        One of this many is promoted.
    indices
        The brackets that trials are split over, as far as they exist; None for all.
    """

    max_steps: Step | None
    min_steps: Step | None
    eta: int
    indices: tuple[int, ...] | None = (0,)

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
        """Return it with its arguments checked; what is wrong with them goes to `check`."""
        lowest, highest = None, None
        if max_steps is not None:
            lowest, highest = _range(check, min_steps, max_steps)
        elif min_steps is not None:
            lowest = check.whole("min_steps", min_steps)
        else:
            check.add("max_steps must be given, or min_steps, got neither")
        trials = check.whole("trials", trials)
        eta = check.whole("eta", eta, at_least=2)
        indices = _indices(check, brackets)
        found = cls(max_steps=highest, min_steps=lowest, eta=eta, indices=indices)
        if not check.problems:
            try:
                found.layout(trials)
            except ConfigurationError as error:
                for problem in error.problems:
                    check.add(problem)
        return found

    def layout(self, trials: int) -> tuple[Bracket, ...]:
        """Return the brackets that `trials` are split over.

        Each must be wide enough for one of its trials to reach `max_steps`. Without
        `min_steps` the lowest rungs are left out until that is so.

        Raises
        ------
        ConfigurationError
            If there are too few trials for `min_steps`, with the number that is enough, or no
            bracket of those wanted exists.
        """
        if self.max_steps is None:
            return self._split(trials, reachable(trials, self.min_steps or 1, self.eta))
        steps = rungs(self.max_steps, self.min_steps, self.eta)
        while True:
            found = self._split(trials, steps)
            if self._are_wide(found):
                return found
            if self.min_steps is not None:
                raise ConfigurationError(self._too_few(trials, steps))
            steps = steps[1:]

    def more(self, brackets: Sequence[Bracket], trials: int) -> tuple[Bracket, ...]:
        """Return `brackets` widened by `trials` that are split as the first were."""
        shares = self._shares(brackets, trials)
        return tuple(
            Bracket(steps=bracket.steps, width=bracket.width + share)
            for bracket, share in zip(brackets, shares, strict=True)
        )

    def to_json(self) -> dict[str, object]:
        """Return it as JSON, for the identity of a tuner."""
        return {
            "max_steps": self.max_steps,
            "min_steps": self.min_steps,
            "eta": self.eta,
            "brackets": None if self.indices is None else list(self.indices),
        }

    def _split(self, trials: int, steps: tuple[Step, ...]) -> tuple[Bracket, ...]:
        wanted = range(len(steps)) if self.indices is None else self.indices
        empty = [Bracket(steps=steps[at:], width=0) for at in wanted if at < len(steps)]
        if not empty:
            raise ConfigurationError(
                f"bracket {min(wanted)} must have rungs, got {len(steps)} in all ({_listed(steps)})"
            )
        return self.more(empty, trials)

    def _shares(self, brackets: Sequence[Bracket], trials: int) -> tuple[int, ...]:
        return allocate(trials, [weight(len(one.steps), self.eta) for one in brackets])

    def _are_wide(self, brackets: Iterable[Bracket]) -> bool:
        return all(bracket.width >= bracket.needs(self.eta) for bracket in brackets)

    def _too_few(self, trials: int, steps: tuple[Step, ...]) -> str:
        """Return the refusal, with the number of trials from which on there are enough."""
        counts = [len(bracket.steps) for bracket in self._split(trials, steps)]
        # A share is n * eta**(k - 1) / k / (sum of weights) for k rungs: at least what the
        # bracket needs as soon as n reaches k times the sum. Rounding may want one less.
        enough = ceil(max(counts) * sum(weight(count, self.eta) for count in counts))
        while self._are_wide(self._split(enough - 1, steps)):
            enough -= 1
        return (
            f"trials must be >= {enough} for one to reach max_steps in every bracket "
            f"(rungs {_listed(steps)}), got {trials}"
        )


def _range(check: Arguments, min_steps: Step | None, max_steps: Step) -> tuple[Step | None, Step]:
    """Check the two numbers, and that they are in order."""
    before = len(check.problems)
    lowest = None if min_steps is None else check.whole("min_steps", min_steps)
    highest = check.whole("max_steps", max_steps)
    if lowest is not None and lowest > highest and len(check.problems) == before:
        check.add(f"min_steps must be <= max_steps ({highest}), got {lowest}")
    return lowest, highest


def _indices(check: Arguments, brackets: str | Iterable[int]) -> tuple[int, ...] | None:
    if isinstance(brackets, str):
        if brackets not in BRACKET_SETS:
            check.add(unknown("bracket set", brackets, BRACKET_SETS))
        return BRACKET_SETS.get(brackets)
    if not isinstance(brackets, Iterable):
        check.add(f"brackets must be the name of a set or a list of ints, got {brackets!r}")
        return None
    came = tuple(brackets)
    found = tuple(check.whole("each of brackets", one, at_least=0) for one in came)
    if not found:
        check.add("brackets must be at least one, got none")
    if len(set(found)) < len(found):
        check.add(f"brackets must be distinct, got {list(came)}")
    return tuple(sorted(found))


def _listed(steps: Iterable[Step]) -> str:
    return ", ".join(map(str, steps))
