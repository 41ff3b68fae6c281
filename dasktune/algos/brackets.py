"""The base of asynchronous successive halving, by promotion and by stopping."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from dasktune.algos.rung import Rung
from dasktune.algos.rungs import Bracket, Halving
from dasktune.algos.sampled import Budget, SampledTuner
from dasktune.algos.state import Readers
from dasktune.sequences.values import Arguments
from dasktune.space.define_by_run import AnySpace, Definition
from dasktune.types import Decision, Extend, Finish, Step


@dataclass(slots=True, kw_only=True)
class OpenBracket:
    """A bracket in which trials are trained.

    Parameters
    ----------
    steps
        Its rungs.
    width
        The number of trials that are to begin in it.
    filled
        The number of trials that have begun in it.
    rungs
        The reports at each rung but the top one, which promotes no trial. If the horizon grows,
        also those at the top one.
    """

    steps: tuple[Step, ...]
    width: int
    filled: int
    rungs: tuple[Rung, ...]


class BracketTuner(SampledTuner):
    """Splits its trials over brackets; its kind decides after each report.

    Parameters
    ----------
    space, seed, sampler
        As for `dasktune.algos.sampled.SampledTuner`.
    trials
        n: number of configurations to try. They are split over the brackets so that each
        bracket gets the same total of training; a new trial goes to the bracket that lags
        most behind its share.
    max_steps
        R: the step that the best are trained to. None, with `min_steps`, lets them go as far
        as `trials` can reach, ``min_steps * eta**floor(log_eta(trials))``: the infinite
        horizon. It grows when trials are added: the best at the rung that was the top go on.
    min_steps
        r: the step that every trial is trained to at least. If None, `max_steps` is divided by
        `eta` to at most five rungs, and the lowest are left out while a bracket has too few
        trials for one to reach `max_steps`.
    eta
        One of `eta` trials is promoted.
    brackets
        ``"standard"`` (0, 1 and 2, those that halve nobody left out), ``"aggressive"`` (0),
        ``"conservative"`` (all), or their numbers. Bracket s begins at rung s; missing ones are
        left out.

    Raises
    ------
    ConfigurationError
        If a number is too small, `min_steps` is above `max_steps`, or there are too few
        trials for `min_steps`: all at once, with the number that is enough.
    """

    takes_back = True
    state: ClassVar[tuple[str, ...]] = ("brackets", "open")
    options: Halving
    brackets: tuple[OpenBracket, ...]
    open: dict[int, tuple[int, int]]
    """By trial under way: its bracket and its next rung."""

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
        halving = Halving.checked(
            check,
            trials=trials,
            max_steps=max_steps,
            min_steps=min_steps,
            eta=eta,
            brackets=brackets,
        )
        if max_steps is None:
            # The horizon follows from the trials; if those are wrong, any number will do.
            max_steps = 1 if check.problems else halving.layout(trials)[0].steps[-1]
        budget = Budget.checked(check, trials, max_steps, seed)
        super().__init__(space, budget, halving, sampler=sampler, check=check)

    # ------------------------------------------------------------------- for kinds to define

    @abstractmethod
    def launch(self, trial: int, bracket: OpenBracket) -> Extend:
        """Return how far a new trial is trained, and the steps of its reports."""

    @abstractmethod
    def go_on(self, place: int, level: int) -> list[Decision]:
        """Return the decisions about a bracket's trials after rungs were added above `level`.

        They are those that the longer bracket would have made at this level.
        """

    @abstractmethod
    def again(self, trial: int, level: int, bracket: OpenBracket) -> Extend:
        """Return how far a failed trial is trained that goes on to a rung."""

    def layout(self) -> tuple[Bracket, ...]:
        """Return the brackets before the first trial."""
        return self.options.layout(self.trials)

    @property
    def advice(self) -> list[str]:
        """A sentence more if a third of the trials or more are trained to the end."""
        return [*super().advice, *self.options.advice(type(self).__name__, self.trials)]

    def place(self, trial: int) -> int:
        """Return the bracket of the next trial: the one that lags most behind its share."""
        # In whole numbers: how many of the first trial + 1 it should have, times the trials.
        lags = [(trial + 1) * each.width - each.filled * self.trials for each in self.brackets]
        return lags.index(max(lags))

    # ----------------------------------------------------------------- shared by both kinds

    def begin(self) -> None:
        """Begin with empty brackets."""
        self.brackets = tuple(
            OpenBracket(
                steps=bracket.steps,
                width=bracket.width,
                filled=0,
                rungs=self._rungs(len(bracket.steps)),
            )
            for bracket in self.layout()
        )
        self.open = {}

    def _rungs(self, count: int) -> tuple[Rung, ...]:
        """Return the empty rungs of a bracket with `count` of them."""
        kept = count if self.options.horizon else count - 1
        return tuple(Rung(self.options.eta) for _ in range(kept))

    def derive(self) -> None:
        """Set `max_steps`, which depends on the trials at the infinite horizon."""
        self.max_steps = self.brackets[0].steps[-1]

    @property
    def readers(self) -> Readers:
        """The reader of rungs."""
        return {Rung: partial(Rung.from_json, self.options.eta)}

    def ask(self, capacity: int) -> list[Decision]:
        """Return all trials the first time, or one for each free worker if a sampler learns."""
        count = min(self.left, capacity) if self.source.learns else self.left
        registers: list[Decision] = []
        extends: list[Decision] = []
        for _ in range(count):
            place = self.place(self.registered)
            register = self.draw()
            self.brackets[place].filled += 1
            self.open[register.trial] = (place, 0)
            registers.append(register)
            extends.append(self.launch(register.trial, self.brackets[place]))
        return [*registers, *extends]

    def on_failure(self, trial: int) -> list[Decision]:
        """Return `Finish` after the last trial; the failed one keeps its places in the rungs."""
        return [] if self.open.pop(trial, None) is None else self.ending()

    def on_retry(self, trial: int) -> Extend:
        """Open a failed trial again, at the rung after the last that it has reported at."""
        place, level = self.rung_of(trial)
        self.open[trial] = (place, level)
        return self.again(trial, level, self.brackets[place])

    def rung_of(self, trial: int) -> tuple[int, int]:
        """Return the bracket and the next rung of a trial.

        One without a report begins in the widest bracket: where it had begun is not kept.
        """
        for place, bracket in enumerate(self.brackets):
            passed = sum(rung.has(trial) for rung in bracket.rungs)
            if passed:
                return place, passed
        widths = [bracket.width for bracket in self.brackets]
        return widths.index(max(widths)), 0

    def ending(self) -> list[Decision]:
        """Return `Finish` if all trials have begun and ended."""
        return [] if self.open or self.left else [Finish()]

    def grow(self, trials: int) -> list[Decision]:
        """Widen the brackets, by the formula that split the first trials, and fill them."""
        if self.options.horizon is not None:
            return [*self._lengthen(), *self.ask(0)]
        now = [Bracket(steps=each.steps, width=each.width) for each in self.brackets]
        for bracket, wider in zip(self.brackets, self.options.more(now, trials), strict=True):
            bracket.width = wider.width
        return self.ask(0)

    def _lengthen(self) -> list[Decision]:
        """Give the brackets their rungs and widths for all trials; return what their trials do."""
        decisions: list[Decision] = []
        wider = self.layout()
        added = tuple(
            OpenBracket(steps=each.steps, width=0, filled=0, rungs=self._rungs(len(each.steps)))
            for each in wider[len(self.brackets) :]
        )
        self.brackets += added
        for place, (bracket, each) in enumerate(zip(self.brackets, wider, strict=True)):
            bracket.width = each.width
            last = len(bracket.steps) - 1
            if len(each.steps) > len(bracket.steps):
                bracket.steps = each.steps
                bracket.rungs += self._rungs(len(each.steps) - last - 1)
                decisions += self.go_on(place, last)
        self.derive()
        return decisions
