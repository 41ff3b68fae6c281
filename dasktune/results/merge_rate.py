"""What studies have in common, as far as they have come."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

from dasktune.graph.cost import steps_together
from dasktune.results.results import StudyResults
from dasktune.types import Sequences, Step


def merge_rate(studies: Iterable[StudyResults]) -> float:
    """Return `q`: the steps that the trials of all studies asked for by those that are unique.

    Of a single study it is the ``merge_rate`` of its summary. Studies share states if their
    fingerprint (code, config, data) and their training seed are the same; whether they found
    them depends on whether they had a store or a database in common.

    Parameters
    ----------
    studies
        Opened studies, of any databases and stores.

    References
    ----------
    Shin et al., "Hippo: Taming Hyper-parameter Optimization of Deep Learning with Stage
    Trees", section 6: `q`, there with every trial trained to its maximum; here each as far
    as its tuner asked for.
    """
    asked, unique = steps_together(trial for study in studies for trial in _asked(study))
    return asked / unique if unique else 1.0


def _asked(study: StudyResults) -> Iterator[tuple[Hashable, Sequences, Step]]:
    """Yield what each trial started from, its sequences, and how far it was asked for."""
    plan = study.plan
    for number, trial in study.records.items():
        steps = max(trial.steps, trial.until or 0)
        if trial.was_trained_here and steps:
            first = plan.nodes_of(number)[0]
            # In a study that does not merge each trial starts from a state of its own.
            start = plan.root_key_of(first)
            yield start if plan.merge else (start, number), trial.sequences, steps
