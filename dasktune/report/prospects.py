"""Predictions for unfinished trials, and POP's labels of trials."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dasktune._engine.trials import Trial, TrialRecord
from dasktune._engine.tuner_records import Document
from dasktune._results.prediction import TrialPrediction
from dasktune.algos.pop import Label
from dasktune.algos.pop.active import BEHIND, MOST_WORTH
from dasktune.errors import ConfigurationError
from dasktune.types import TrialState

MOST_FANS = 3
"""Most unfinished trials with a fan, the best first."""

UNFINISHED = (TrialState.RUNNING, TrialState.PAUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """POP's last label of a trial.

    Parameters
    ----------
    label
        Promising, opportunistic or poor.
    confidence
        Probability that a promising trial reaches the target in time; None for others.
    """

    label: Label
    confidence: float | None = None

    def __str__(self) -> str:
        sure = "" if self.confidence is None else f", p = {self.confidence:.2f}"
        return f"{self.label.value}{sure}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospects:
    """Predictions and labels of trials for the page.

    Parameters
    ----------
    standings
        POP's labels by number of the trial; empty if the last tuner is not POP.
    target
        POP's target value, or None.
    """

    predictions: Sequence[TrialPrediction] = ()
    standings: Mapping[int, Standing] = field(default_factory=dict)
    target: float | None = None

    def by_label(self) -> dict[str, list[int]]:
        """Return the trials of each label, the most promising label first."""
        by_label: dict[str, list[int]] = defaultdict(list)
        for label in Label:
            for number, standing in sorted(self.standings.items()):
                if standing.label is label:
                    by_label[label.value].append(number)
        return dict(by_label)


def prospects_of(study: Any, ranked: Iterable[Trial | TrialRecord]) -> Prospects:
    """Return predictions and labels of a study's trials.

    Parameters
    ----------
    study
        A `dasktune._study.study.Study`.
    ranked
        Its trials with a value, the best first.
    """
    place, identity = len(study.tuners) - 1, study.tuners[-1] if study.tuners else {}
    standings: dict[int, Standing] = {}
    target = bounds = None
    if identity.get("tuner") == "POP" and not identity.get("barrier"):
        local = standings_of(study.decisions_of(place))
        standings = {
            record.number: local[record.local]
            for record in study.records.values()
            if record.tuner == place and record.local in local
        }
        target, bounds = identity.get("target"), identity.get("bounds")
    predictions: list[TrialPrediction] = []
    for trial in ranked:
        if len(predictions) < MOST_FANS and trial.state in UNFINISHED:
            try:
                predictions.append(study.predict(trial.number, bounds=bounds or (None, None)))
            except ConfigurationError:
                continue  # all its steps are trained already, or it was added with a result
    return Prospects(predictions=tuple(predictions), standings=standings, target=target)


def standings_of(records: Iterable[Document]) -> dict[int, Standing]:
    """Return POP's last label of each trial, by its number in the tuner.

    A promising trial has a priority of 1 + p, an opportunistic trial a negative one. A trial
    that was stopped, or waits behind all others, is poor.
    """
    standings: dict[int, Standing] = {}
    for record in records:
        for decision in record.get("decisions", ()):
            match decision:
                case {"do": "stop", "trial": trial}:
                    standings[trial] = Standing(label=Label.POOR)
                case {"do": "extend" | "rank", "trial": trial, "priority": priority}:
                    standings[trial] = _waiting(priority)
                case _:
                    pass
    return standings


def _waiting(priority: float) -> Standing:
    """Return the label that follows from a priority."""
    if priority >= 1:
        return Standing(label=Label.PROMISING, confidence=priority - 1)
    is_behind = priority <= MOST_WORTH - BEHIND
    return Standing(label=Label.POOR if is_behind else Label.OPPORTUNISTIC)
