"""What may come of the trials that are not at their end, and what POP held of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dasktune.algos.pop import Label
from dasktune.algos.pop.active import BEHIND, MOST_WORTH
from dasktune.engine.event_log import Record
from dasktune.engine.trials import Trial
from dasktune.errors import ConfigurationError
from dasktune.results.prediction import Outlook
from dasktune.types import TrialState

MOST_FANS = 3
"""Best unfinished trials whose fans are drawn."""

UNFINISHED = (TrialState.RUNNING, TrialState.PAUSED, TrialState.PRUNED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What POP held of a trial at last.

    Parameters
    ----------
    label
        Promising, opportunistic or poor.
    confidence
        How likely a promising one is to reach the target in time; None of others.
    """

    label: Label
    confidence: float | None = None

    def __str__(self) -> str:
        sure = "" if self.confidence is None else f", p = {self.confidence:.2f}"
        return f"{self.label.value}{sure}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospects:
    """What the page says of the future.

    Parameters
    ----------
    outlooks
        Of the best unfinished trials.
    standings
        What POP held of its trials, by their numbers; empty if the last tuner was another.
    target
        The value that POP was to reach; None if there is none.
    """

    outlooks: Sequence[Outlook] = ()
    standings: Mapping[int, Standing] = field(default_factory=dict)
    target: float | None = None

    def by_label(self) -> dict[str, list[int]]:
        """Return the trials of each label, the most promising label first."""
        found: dict[str, list[int]] = defaultdict(list)
        for label in Label:
            for number, standing in sorted(self.standings.items()):
                if standing.label is label:
                    found[label.value].append(number)
        return dict(found)


def prospects_of(study: Any, ranked: Iterable[Trial]) -> Prospects:
    """Return what may come of a study's trials.

    Parameters
    ----------
    study
        A `dasktune.study.study.Study`.
    ranked
        Its trials with a value, the best first.
    """
    place, identity = len(study.tuners) - 1, study.tuners[-1] if study.tuners else {}
    standings: dict[int, Standing] = {}
    target = bounds = None
    if identity.get("tuner") == "POP" and not identity.get("barrier"):
        local = standings_of(study.decisions_of(place))
        mine = (one for one in study.records.values() if one.tuner == place)
        standings = {one.number: local[one.local] for one in mine if one.local in local}
        target, bounds = identity.get("target"), identity.get("bounds")
    outlooks: list[Outlook] = []
    for trial in ranked:
        if len(outlooks) < MOST_FANS and trial.state in UNFINISHED:
            try:
                outlooks.append(study.predict(trial.number, bounds=bounds or (None, None)))
            except ConfigurationError:
                continue  # others have gone its way to the end, or it was added with a result
    return Prospects(outlooks=tuple(outlooks), standings=standings, target=target)


def standings_of(records: Iterable[Record]) -> dict[int, Standing]:
    """Return what POP's decisions say of each trial, by its number there.

    One that is promising has a priority of 1 + p, one that waits for its turn a negative one. A
    trial that was ended, or waits behind all others, is poor.
    """
    found: dict[int, Standing] = {}
    for record in records:
        for decision in record.get("decisions", ()):
            match decision:
                case {"do": "stop", "trial": trial}:
                    found[trial] = Standing(label=Label.POOR)
                case {"do": "extend" | "rank", "trial": trial, "priority": priority}:
                    found[trial] = _waiting(priority)
                case _:
                    pass
    return found


def _waiting(priority: float) -> Standing:
    """Return what the priority of a trial says that may go on."""
    if priority >= 1:
        return Standing(label=Label.PROMISING, confidence=priority - 1)
    is_behind = priority <= MOST_WORTH - BEHIND
    return Standing(label=Label.POOR if is_behind else Label.OPPORTUNISTIC)
