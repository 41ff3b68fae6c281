"""What asynchronous successive halving has in common, by promotion and by stopping."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dasktune.algos.rung import Rung
from dasktune.algos.rungs import Bracket, Halving
from dasktune.algos.sampled import SampledTuner
from dasktune.errors import ConfigurationError
from dasktune.sequences.values import Arguments
from dasktune.space.define_by_run import AnySpace, Definition
from dasktune.types import Decision, Extend, Finish, Register, Step


@dataclass(slots=True)
class OpenBracket:
    """A bracket at work.

    Parameters
    ----------
    steps
        Its rungs.
    width
        How many trials are to begin in it.
    rungs
        Who has reported at which; the top rung promotes nobody and is not kept.
    filled
        How many trials have begun in it.
    """

    steps: tuple[Step, ...]
    width: int
    rungs: tuple[Rung, ...]
    filled: int = 0

    @classmethod
    def begun(cls, bracket: Bracket, eta: int) -> OpenBracket:
        """Return a bracket that nobody is in."""
        rungs = tuple(Rung(eta) for _ in bracket.steps[:-1])
        return cls(steps=bracket.steps, width=bracket.width, rungs=rungs)

    def to_json(self) -> dict[str, object]:
        """Return it as JSON."""
        return {
            "steps": list(self.steps),
            "width": self.width,
            "filled": self.filled,
            "rungs": [rung.to_json() for rung in self.rungs],
        }

    @classmethod
    def from_json(cls, found: Any, eta: int) -> OpenBracket:
        """Return the bracket that was written so."""
        match found:
            case {
                "steps": [*steps],
                "width": int(width),
                "filled": int(filled),
                "rungs": [*rungs],
            } if len(rungs) == len(steps) - 1:
                kept = tuple(Rung.from_json(eta, arrivals) for arrivals in rungs)
                return cls(steps=tuple(steps), width=width, rungs=kept, filled=filled)
        raise ConfigurationError(f"not a bracket: {found!r}")


class BracketTuner(SampledTuner):
    """Splits its trials over brackets, and lets its kind say what a report leads to.

    Parameters
    ----------
    space
        What to draw from.
    trials
        n: how many configurations to try.
    max_steps
        R: how far the best are trained. None, with `min_steps`, for the infinite horizon.
    min_steps
        r: how far every trial is trained at least.
    eta
        One of this many is promoted.
    brackets
        ``"standard"`` (0, 1 and 2), ``"aggressive"`` (0), ``"conservative"`` (all), or
        their numbers.
    seed
        Decides what is drawn.
    sampler
        Proposes configurations; None draws at random.
    """

    def __init__(
        self,
        space: AnySpace | Definition,
        *,
        trials: int,
        max_steps: Step | None = None,
        min_steps: Step | None = None,
        eta: int = 4,
        brackets: str | Iterable[int] = "standard",
        seed: int = 0,
        sampler: object = None,
    ) -> None:
        check = Arguments(type(self).__name__)
        self.halving = Halving.checked(
            check,
            trials=trials,
            max_steps=max_steps,
            min_steps=min_steps,
            eta=eta,
            brackets=brackets,
        )
        if max_steps is None:
            # The horizon follows from the trials; where they are wrong, any number will do.
            max_steps = 1 if check.problems else self.halving.layout(trials)[0].steps[-1]
        super().__init__(
            space,
            trials=trials,
            max_steps=max_steps,
            seed=seed,
            sampler=sampler,
            check=check,
            more=self.halving.to_json(),
        )

    # --------------------------------------------------------------- what kinds must do

    @abstractmethod
    def launch(self, trial: int, bracket: OpenBracket) -> Extend:
        """Return how far a new trial is trained, and where it reports."""

    def layout(self) -> tuple[Bracket, ...]:
        """Return the brackets it begins with."""
        return self.halving.layout(self.trials)

    def place(self, trial: int) -> int:
        """Return the bracket of the next trial: the one that lags most behind its share."""
        # In whole numbers: how many of the first trial + 1 it should have, times the trials.
        lags = [(trial + 1) * one.width - one.filled * self.trials for one in self.brackets]
        return lags.index(max(lags))

    # ------------------------------------------------------------------- what they share

    def begin(self) -> None:
        """Nobody is in any bracket yet."""
        self._take_brackets(
            OpenBracket.begun(bracket, self.halving.eta) for bracket in self.layout()
        )
        self.open: dict[int, tuple[int, int]] = {}

    def ask(self, capacity: int) -> list[Decision]:
        """Return all trials the first time, or one for each free worker if a sampler learns."""
        count = min(self.left, capacity) if self.source.learns else self.left
        registers: list[Register] = []
        extends: list[Extend] = []
        for _ in range(count):
            at = self.place(self.registered)
            drawn = self.draw()
            self.brackets[at].filled += 1
            self.open[drawn.trial] = (at, 0)
            registers.append(drawn)
            extends.append(self.launch(drawn.trial, self.brackets[at]))
        return [*registers, *extends]

    def failed(self, trial: int) -> list[Decision]:
        """Return `Finish` if this was the last; it keeps its places in the rungs."""
        return [] if self.open.pop(trial, None) is None else self.ending()

    def ending(self) -> list[Decision]:
        """Return `Finish` once nothing is under way and nothing is left to draw."""
        return [] if self.open or self.left else [Finish()]

    def grow(self, trials: int) -> list[Decision]:
        """Widen the brackets, by the formula that split the first trials, and fill them."""
        now = [Bracket(steps=one.steps, width=one.width) for one in self.brackets]
        for bracket, wider in zip(self.brackets, self.halving.more(now, trials), strict=True):
            bracket.width = wider.width
        return self.ask(0)

    def state_json(self) -> dict[str, object]:
        """Return the brackets, and for each trial under way its bracket and next rung."""
        return {
            "brackets": [bracket.to_json() for bracket in self.brackets],
            "open": [[trial, at, level] for trial, (at, level) in self.open.items()],
        }

    def take_state_json(self, state: Mapping[str, object]) -> None:
        """Take over such a state."""
        found: Any = state
        match found:
            case {"brackets": [_, *_] as brackets, "open": [*under_way]}:
                self._take_brackets(
                    OpenBracket.from_json(one, self.halving.eta) for one in brackets
                )
                self.open = {trial: (at, level) for trial, at, level in under_way}
            case _:
                raise ConfigurationError(f"not the state of this tuner: {state!r}")

    def _take_brackets(self, brackets: Iterable[OpenBracket]) -> None:
        self.brackets = tuple(brackets)
        # All brackets end at one step; without a given one, it depends on the trials.
        self.max_steps = self.brackets[0].steps[-1]
