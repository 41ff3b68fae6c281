"""The warnings of a run: before it begins, when trials begin to train alone, and at its end."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

from dasktune._driver.audit_notes import AuditDifferenceError, figures_of
from dasktune._driver.history import History
from dasktune._driver.refused_resumes import AloneRule, ResumeRefusedError
from dasktune._results.no_best import no_best_text
from dasktune._results.results import StudyResults
from dasktune._results.withdrawn import RETRAIN
from dasktune._words import listed
from dasktune.algos.base import Tuner
from dasktune.algos.sampled import SampledTuner
from dasktune.types import TrialState

logger = logging.getLogger(__name__)


def warn_by_advice(study: str, tuner: Tuner) -> None:
    """Log the advice of a new tuner about its arguments."""
    for sentence in tuner.advice:
        logger.warning("study %s: %s", study, sentence)


def warn_of_queue(study: str, tuner: Tuner, queued: int, *, goes_on: bool) -> None:
    """Log a warning if trials are queued that this tuner will not take."""
    if queued and not tuner.most_queued:
        logger.warning(
            "study %s: %s draws no configurations, so %d queued trials wait on",
            *(study, type(tuner).__name__, queued),
        )
    elif queued and goes_on:
        logger.warning(
            "study %s: this tuner goes on, and takes no queued trials; %d wait for a new one, "
            "such as one with another seed",
            *(study, queued),
        )


def warn_of_trials_not_taken_back(study: str, tuner: Tuner, failed: int) -> None:
    """Log a warning that a tuner leaves failed trials out which somebody asked to retry."""
    logger.warning(
        "study %s: %s takes no failed trial back, so %d are not trained again",
        *(study, type(tuner).__name__, failed),
    )


def warn_of_written_globals(study: str, names: Iterable[str]) -> None:
    """Log a warning about globals that the training code has changed in this process."""
    logger.warning(
        "study %s: the training code writes %s, which has another value now than at "
        "first; workers begin with the first value. To use another one, bind the name "
        "again and run create_study again",
        *(study, listed(sorted(names))),
    )


def warn_of_found_differences(study: str, history: History) -> None:
    """Log the differences that audits have found: results of an ended tuner may rest on them."""
    for text in figures_of(history).differences:
        logger.warning("study %s: %s", study, text)


def warn_of_no_best(results: StudyResults) -> None:
    """Log a warning after a run if no trial of its study has a finite value."""
    ended = [record for record in results.records.values() if record.state is not TrialState.FAIL]
    values = [record.values for record in ended if record.values is not None]
    if not results.records or any(all(map(math.isfinite, each)) for each in values):
        return
    why = no_best_text(results.trials, results.metric, results.direction)
    logger.warning("study %s has no trial with a finite value: %s", results.name, why)


def warn_of_trials_alone(study: str, rule: AloneRule, reason: str) -> None:
    """Log a warning about trials that a run trains alone, because of what earlier runs found."""
    which = "each trial" if rule.is_all else "the trials of a lineage"
    logger.warning("study %s trains %s alone, from step 0: %s", study, which, reason)


def warn_of_refused(study: str, error: ResumeRefusedError, alone: AloneRule) -> None:
    """Log a warning about a refused resume, and the trials that are trained alone from now on."""
    which = (
        "the study merges nothing any more: trials that have not ended are trained"
        if alone.is_all
        else "trials with the same values at step 0 are trained"
    )
    logger.warning(
        "study %s: %s\nNothing was reported from this state, and what is stored stays. From "
        "now on %s alone, from step 0",
        *(study, error, which),
    )


def warn_of_difference(difference: AuditDifferenceError) -> None:
    """Log the difference that an audit has found in a run, and what follows from it."""
    logger.warning(
        "%s\nFrom now on the study merges nothing: trials that have not ended are trained "
        "again, each alone and from step 0. The others keep their results: %s",
        *(difference, RETRAIN),
    )


def warn_of_seed(study: str, tuner: Tuner) -> None:
    """Log a warning if a new tuner has drawn what is trained already, by the same seed."""
    if isinstance(tuner, SampledTuner):
        logger.warning(
            "study %s: no step was trained, since all states were stored: %s draws the same "
            "configurations for the same seed, here %d; another seed draws others",
            *(study, type(tuner).__name__, tuner.seed),
        )
