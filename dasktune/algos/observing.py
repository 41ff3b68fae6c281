"""The base of sources that learn: what they keep of trials, and how they go on after a stop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dasktune.algos.base import Proposal
from dasktune.algos.observations import Observations, Observed, losses_of
from dasktune.algos.samplers import Source
from dasktune.errors import ConfigurationError
from dasktune.space import Configuration, Drawing
from dasktune.space.define_by_run import SpaceLike
from dasktune.types import Step


class ObservingSource(Source):
    """Keeps all proposals and reports; a kind proposes from them.

    Parameters
    ----------
    space
        The space to propose from.
    seed
        Decides the draws.

    Attributes
    ----------
    earlier_ignored
        The number of earlier trials that were not of this space.
    """

    learns = True

    def __init__(self, space: SpaceLike, seed: int) -> None:
        self._space = space
        self._seed = seed
        self._observed = Observations()
        self.earlier_ignored = 0

    def accept(self, trial: int, proposal: Proposal) -> Configuration:
        """Return the configuration of a proposal; missing coordinates are drawn at random."""
        point, notes = proposal["point"], proposal.get("notes", {})
        if not isinstance(point, Mapping) or not isinstance(notes, Mapping):
            raise ConfigurationError(f"not a proposal for {type(self).__name__}: {proposal!r}")
        drawing = Drawing(np.random.default_rng((self._seed, trial)))
        configuration = self._space.at(point, otherwise=drawing)
        self._observed.add(_observed_of(configuration, trial=trial, notes=notes))
        return configuration

    def expect(self, objectives: int) -> None:
        """Receive the number of objectives, before the first report shows it."""
        self._observed.expected = objectives

    def earlier(self, point: Mapping[str, object], step: Step, losses: tuple[float, ...]) -> None:
        """Observe an earlier trial if all its coordinates are of the space."""
        if not self.learns:
            return
        try:
            configuration: Configuration | None = self._space.at(point)  # type: ignore[arg-type]
        except ConfigurationError:
            configuration = None
        if configuration is None or configuration.problem:
            self.earlier_ignored += 1
            return
        self._observed.add(_observed_of(configuration, trial=None, losses={step: losses}))

    def observe(self, trial: int, step: Step, losses: tuple[float, ...]) -> None:
        """Observe a report."""
        self._observed.report(trial, step, losses)

    def fail(self, trial: int) -> None:
        """Observe the failure of a trial."""
        self._observed.fail(trial)

    def retry(self, trial: int) -> None:
        """Observe that a failed trial is trained again."""
        self._observed.retry(trial)

    def snapshot(self) -> object:
        """Return all proposals and reports."""
        return {
            "objectives": self._observed.expected,
            "trials": [observed.to_json() for observed in self._observed.trials],
            "earlier_ignored": self.earlier_ignored,
        }

    def restore(self, snapshot: object) -> None:
        """Continue with the proposals and reports of a snapshot."""
        match snapshot:
            case {
                "objectives": int() | None as objectives,
                "trials": list(trials),
                "earlier_ignored": int(ignored),
            }:
                self._observed = Observations()
                self._observed.expected = objectives
                self.earlier_ignored = ignored
                for document in trials:
                    self._observed.add(self._read(document))
            case _:
                raise ConfigurationError(f"not a snapshot of this source: {snapshot!r}")

    def _read(self, document: Any) -> Observed:
        return _observed_of(
            self._space.at(document["point"]),
            trial=document["trial"],
            notes=document["notes"],
            losses=losses_of(document["losses"]),
            failed=document["failed"],
        )


def _observed_of(configuration: Configuration, **facts: Any) -> Observed:
    return Observed(
        point=configuration.point,
        domains=configuration.domains,
        sequences=configuration.sequences,
        is_undrawn=bool(configuration.problem),
        **facts,
    )
