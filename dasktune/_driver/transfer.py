"""Transfer: the finished trials of other studies in a database, for a sampler that learns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from dasktune._driver.history import History
from dasktune._engine.trials import TrialRecord
from dasktune._engine.tuner_records import TunerBegun
from dasktune._words import counted
from dasktune.algos.base import Tuner
from dasktune.storage.database.database import Database
from dasktune.storage.database.rows import StudyRow
from dasktune.types import TrialState

TRANSFERS: Final = ("database",)
"""The places that trials are transferred from."""

SAME: Final = ("fingerprint", "metric", "direction")
"""What two studies must have in common; the space is compared by tuner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """The number of trials that a sampler learned from another study, before its first proposal."""

    tuner: int
    """The place of the sampler's tuner in `Study.tuners`."""
    study: str
    """The study that gave the trials."""
    trials: int
    """Their number."""

    def __str__(self) -> str:
        return f"{counted(self.trials, 'trial')} of {self.study}"


def transfers_of(begun: Mapping[int, TunerBegun]) -> list[Transfer]:
    """Return the transfers with which the tuners of a study began, each by its place."""
    return [
        Transfer(tuner=place, study=study, trials=trials)
        for place, tuner in begun.items()
        for study, trials in tuner.inputs.get("given", {}).items()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenTrials:
    """The trials that another study gives."""

    study: str
    """Its name."""
    trials: tuple[TrialRecord, ...]
    """Its finished trials of the same space, by number."""


def given_trials(database: Database, row: StudyRow, tuner: Tuner) -> Iterator[GivenTrials]:
    """Yield the finished trials that other studies have for the sampler of a tuner.

    They are those of other tuners on the same space, in studies of the same trainer (with its
    config and data), metric and direction. Their seeds may differ.

    Parameters
    ----------
    tuner
        The tuner, whose sampler learns.
    """
    space = json.loads(json.dumps(tuner.identity().get("space")))
    if not tuner.learns or space is None or row.spec["fingerprint"] == "none":
        return
    for other in database.studies():
        if other.id == row.id or any(other.spec.get(name) != row.spec[name] for name in SAME):
            continue
        history = History(database, other.id)
        history.read_on()
        places = {
            place for place, begun in history.begun.items() if begun.identity.get("space") == space
        }
        trials = tuple(
            trial
            for trial in history.trials().values()
            if trial.tuner in places and trial.values is not None and _is_finished(trial)
        )
        if trials:
            yield GivenTrials(study=other.name, trials=trials)


def _is_finished(trial: TrialRecord) -> bool:
    return trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
