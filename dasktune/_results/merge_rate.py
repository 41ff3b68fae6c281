"""The merge rate of several studies, as far as they have been trained."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Protocol

from dasktune._engine.trials import TrialRecord
from dasktune.graph.cost import steps_together
from dasktune.graph.plan import SearchPlan
from dasktune.types import Sequences, Step


class HasTrials(Protocol):
    """A study or its results."""

    @property
    def plan(self) -> SearchPlan:
        """The search plan of all trials."""

    @property
    def records(self) -> Mapping[int, TrialRecord]:
        """The record of each trial by number."""


def merge_rate(studies: Iterable[HasTrials]) -> float:
    """Return `q`: the requested steps of the trials of all studies, divided by the unique ones.

    For a single study it is the ``merge_rate`` of its summary. Studies can share states if
    their fingerprint (code, config, data) and their training seed are equal; they find them in
    a store or a database that they have in common.

    Parameters
    ----------
    studies
        Open studies, of any databases and stores.

    References
    ----------
    Shin et al., "Hippo: Taming Hyper-parameter Optimization of Deep Learning with Stage
    Trees", section 6: `q`, there with every trial trained to its maximum; here each trial
    counts as far as its tuner requested.
    """
    asked, unique = steps_together(trial for study in studies for trial in _asked(study))
    return asked / unique if unique else 1.0


def _asked(study: HasTrials) -> Iterator[tuple[Hashable, Sequences, Step]]:
    """Yield the start, the sequences and the requested steps of each trial."""
    plan = study.plan
    for number, trial in study.records.items():
        steps = trial.asked
        if trial.was_trained_here and steps:
            # A trial that shares nothing starts from a state of its own.
            yield plan.nodes_of(number)[0].key_at(0), trial.keyed_sequences, steps
