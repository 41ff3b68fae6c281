"""Lone runs of a study's trials in this process: the expected states and metrics."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from dasktune.algos import SHA, Grid, Hyperband, Random
from dasktune.algos.base import Tuner
from dasktune.storage.codec import encode
from dasktune.testing.play import Game
from dasktune.trainer.lifecycle import TrainerRun
from dasktune.types import Metrics, Objective, Sequences, Step

ORDERLY = (Grid, Random, SHA, Hyperband)
"""Tuners whose trials and reports are the same whatever the order of events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lone:
    """One configuration trained alone, from step 0.

    Parameters
    ----------
    digests
        Of the state after each step, from the first.
    metrics
        By step, as far as they were asked for.
    error
        What the trainer raised at the step after the last; empty if nothing.
    """

    digests: tuple[str, ...]
    metrics: Mapping[Step, Metrics] = field(default_factory=dict)
    error: str = ""


class Alone:
    """Trains configurations alone, each once.

    Parameters
    ----------
    trainer, config, seed
        As for `dasktune.create_study`.
    report_every
        Metrics are taken after every so many steps, and where they are asked for.
    """

    def __init__(
        self, trainer: type, *, config: Mapping[str, object], seed: int, report_every: int
    ) -> None:
        self._trainer = trainer
        self._config = config
        self._seed = seed
        self._report_every = report_every
        self._known: dict[str, Lone] = {}
        self.steps = 0
        """Steps trained so far."""

    def run(
        self, sequences: Sequences, steps: Step, *, seed: int = 0, asked: Collection[Step] = ()
    ) -> Lone:
        """Return a configuration trained alone, at least so far.

        Parameters
        ----------
        sequences
            Its hyper-parameters.
        steps
            How far, unless it fails before.
        seed
            Added to the study's.
        asked
            Steps whose metrics are needed.
        """
        name = json.dumps([seed, {key: one.to_json() for key, one in sorted(sequences.items())}])
        known = self._known.get(name)
        needed = {step for step in asked if known is None or step not in known.metrics}
        is_short = known is None or (len(known.digests) < steps and not known.error)
        if known is not None and not is_short and all(step > len(known.digests) for step in needed):
            return known
        more = {*asked, *(known.metrics if known else ())}
        most = max(steps, len(known.digests) if known else 0)
        self._known[name] = self._train(sequences, most, self._seed + seed, more)
        return self._known[name]

    def _train(self, sequences: Sequences, steps: Step, seed: int, asked: set[Step]) -> Lone:
        def values(step: Step) -> dict[str, Any]:
            return {name: one(step) for name, one in sequences.items()}

        digests: list[str] = []
        metrics: dict[Step, Metrics] = {}
        error = ""
        try:
            run = TrainerRun.start(self._trainer, values(0), config=self._config, seed=seed)
            for step in range(steps):
                run.advance(values(step))
                if run.step % self._report_every == 0 or run.step in asked:
                    metrics[run.step] = run.evaluate()
                digests.append(encode(run.state()).digest)
        except Exception as raised:  # noqa: BLE001 - a trainer may raise anything
            error = f"{type(raised).__name__}: {raised}"
        self.steps += len(digests)
        return Lone(digests=tuple(digests), metrics=metrics, error=error)


class _FailedError(Exception):
    """A trial cannot be trained as far."""


def undisturbed(
    tuner: Tuner, alone: Alone, objective: Objective
) -> dict[int, tuple[Step, ...]] | None:
    """Return the steps that each trial of a tuner reports if nothing goes wrong.

    None if that depends on the order of events, or if a trial fails: when others hear of it
    depends on that order, too.

    Parameters
    ----------
    tuner
        One that has not been used.
    alone
        Trains.
    objective
        What it is told.
    """
    if not isinstance(tuner, ORDERLY) or tuner.learns or len(objective.metrics) > 1:
        return None

    def loss(trial: int, step: Step, sequences: Sequences) -> float:
        seed = game.trials[trial].registered.seed
        found = alone.run(sequences, step, seed=seed, asked=[step])
        if step not in found.metrics:
            raise _FailedError
        return objective.losses(found.metrics[step])[0]

    game = Game(tuner, seed=0, loss=loss, in_turn=True)
    try:
        return {trial.number: tuple(trial.reported) for trial in game.run().trials}
    except _FailedError:
        return None
