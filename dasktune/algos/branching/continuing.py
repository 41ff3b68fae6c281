"""The source of `FreezeThaw`: it chooses new configurations and paused trials."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from dasktune.algos.base import Proposal
from dasktune.algos.branching.candidates import different
from dasktune.algos.branching.model import improvements
from dasktune.algos.branching.price import Prices
from dasktune.algos.branching.values import State
from dasktune.algos.observations import Observed
from dasktune.algos.observing import ObservingSource
from dasktune.space import Drawing, Space
from dasktune.types import Sequences, Step


class Candidate(NamedTuple):
    """A configuration that may be trained next.

    Attributes
    ----------
    sequences
        Its hyper-parameters.
    price
        The steps that must be trained until its end.
    proposal
        Its ``point`` if it is new, the number of its ``trial`` if it is paused.
    """

    sequences: Sequences
    price: Step
    proposal: Proposal


class ContinuingSource(ObservingSource):
    """Proposes new configurations and paused trials with one model.

    Parameters
    ----------
    space
        The space of new configurations.
    seed
        Decides the draws.
    startup
        Number of trials that must have reported before the model is used.
    max_steps
        The step at which the losses of all candidates are predicted.
    """

    def __init__(self, space: Space, seed: int, *, startup: int, max_steps: Step) -> None:
        super().__init__(space, seed)
        self._startup, self._max_steps = startup, max_steps
        self._prices = Prices()

    def identity(self) -> object:
        """Return the name of its rules; its arguments are those of the tuner."""
        return "continuing"

    def restore(self, snapshot: object) -> None:
        """Continue with the proposals and reports of a snapshot; the tuner names the steps."""
        super().restore(snapshot)
        self._prices = Prices()

    def propose(self, trial: int) -> Proposal:
        """Return a point drawn at random."""
        drawing = Drawing(np.random.default_rng((self._seed, trial)))
        return {"point": dict(self._space.pick(drawing).point)}

    def price(self, trial: int, until: Step) -> Step:
        """Return the steps of a trial up to `until` that are not trained yet."""
        return self._prices.price(self._observed.of(trial).sequences, until)

    def train(self, trial: int, until: Step) -> None:
        """Note that a trial is trained to `until`."""
        self._prices.store(trial, self._observed.of(trial).sequences, until)

    def choose(
        self, number: int, under_way: Mapping[int, Step], most: Step, *, ignores_prices: bool
    ) -> Proposal | None:
        """Return the proposal of the most promising candidate, if there is a candidate.

        Parameters
        ----------
        number
            The number of the choice; with the seed it decides the draws.
        under_way
            The trials that are being trained, each with the step where it stops.
        most
            The largest price.
        ignores_prices
            Whether the expected improvement alone counts; else it is divided by the price.
        """
        candidates = [
            candidate
            for candidate in (*self._new(number), *self._paused(under_way))
            if 0 < candidate.price <= most
        ]
        if not candidates:
            return None
        seen, losses = self._known()
        best = 0  # drawn from the whole space, if anything there is left
        if sum(map(_has_learned, self._observed.trials)) >= self._startup:
            gains = improvements(
                seen,
                losses,
                [(self._observed.of(trial).sequences, step) for trial, step in under_way.items()],
                [(candidate.sequences, self._max_steps) for candidate in candidates],
            )
            prices = np.array([candidate.price for candidate in candidates], float)
            best = int(np.argmax(gains if ignores_prices else gains / prices))
        return {**candidates[best].proposal, "notes": {"ignores_prices": ignores_prices}}

    def _new(self, number: int) -> Iterator[Candidate]:
        """Yield configurations that no trial has, the first ones drawn from the whole space."""
        rng = np.random.default_rng((self._seed, number))
        reported = filter(_has_learned, self._observed.trials)
        best_first = [each.point for each in sorted(reported, key=_last_loss)]
        begun = {
            tuple(each.point.items()) for each in self._observed.trials if each.trial is not None
        }
        for each in different(self._space, self._space.pick(Drawing(rng)), best_first, rng):
            if tuple(each.point.items()) in begun:
                continue
            price = self._prices.price(each.sequences, self._max_steps)
            yield Candidate(each.sequences, price, {"point": dict(each.point)})

    def _paused(self, under_way: Mapping[int, Step]) -> Iterator[Candidate]:
        """Yield the trials that may go on: those with a finite loss at their last report."""
        for each in self._observed.trials:
            if each.trial is None or each.failed or each.trial in under_way:
                continue
            if _has_learned(each):
                price = self._prices.price(each.sequences, self._max_steps)
                yield Candidate(each.sequences, price, {"trial": each.trial})

    def _known(self) -> tuple[list[State], list[float]]:
        """Return all states with a report, and their losses, at most the worst finite loss."""
        reports = [
            ((each.sequences, step), losses[0])
            for each in self._observed.trials
            for step, losses in each.losses.items()
        ]
        worst = max((loss for _, loss in reports if math.isfinite(loss)), default=0.0)
        return [state for state, _ in reports], [min(loss, worst) for _, loss in reports]


def _last_loss(observed: Observed) -> float:
    return observed.losses[max(observed.losses)][0]


def _has_learned(observed: Observed) -> bool:
    """Return whether the last report of a trial has a finite loss."""
    return bool(observed.losses) and math.isfinite(_last_loss(observed))
