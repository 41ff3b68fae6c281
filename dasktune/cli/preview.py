"""The output of the command ``preview``: the costs of the studies of some files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dasktune.algos.base import known_configurations
from dasktune.cli.study_file import load
from dasktune.errors import ConfigurationError
from dasktune.graph.cost import Cost, Costs, StudyTrials, costs_of
from dasktune.study.create import config_of

FIELDS = (
    *("trials", "steps_requested", "steps_unique", "merge_rate", "critical_path"),
    *("checkpoints", "workers", "bound_steps"),
)


def costs_of_files(
    files: Sequence[Path], settings: Sequence[str], *, workers: int
) -> tuple[Costs, bool]:
    """Return the costs of files' studies, and whether all of them train every trial in full.

    Fingerprints and seeds decide which studies share states. A single study needs only its
    trials.

    Raises
    ------
    ConfigurationError
        If a file cannot be loaded or its trials are not known beforehand.
    """
    studies, in_full = [], True
    for file in files:
        fingerprint, seed = _origin(file, settings) if len(files) > 1 else ("", 0)
        tuner = load(file, settings).tuner()
        known = known_configurations(tuner)
        in_full = in_full and tuner.trains_in_full
        trials = tuple((each.sequences, tuner.max_steps) for each in known)
        seeds = tuple(seed + each.seed for each in known)
        studies.append(StudyTrials(trials=trials, seeds=seeds, fingerprint=fingerprint))
    return costs_of(studies, workers=workers), in_full


def in_words(files: Sequence[Path], costs: Costs) -> str:
    """Return the costs as text."""
    if len(costs.studies) == 1:
        return str(costs.studies[0])
    each = [f"{file}\n{_indented(cost)}" for file, cost in zip(files, costs.studies, strict=True)]
    return "\n".join([*each, str(costs)])


def to_json(files: Sequence[Path], costs: Costs) -> dict[str, object]:
    """Return the costs as a JSON document: of the only file, or of all and of each."""
    each = [{name: getattr(cost, name) for name in FIELDS} for cost in costs.studies]
    if len(each) == 1:
        return each[0]
    return {
        "studies": [
            {"file": str(file), **figures} for file, figures in zip(files, each, strict=True)
        ],
        "steps_requested": costs.steps_requested,
        "steps_unique": costs.steps_unique,
        "merge_rate": costs.merge_rate,
    }


def _origin(file: Path, settings: Sequence[str]) -> tuple[str, int]:
    """Return fingerprint and training seed of a file's study."""
    config = config_of(lambda: load(file, settings).study())
    if config is None:
        raise ConfigurationError(f"{file} must call create_study, or nothing says what it trains")
    fingerprint = config.fingerprint()
    # A study without a trainer shares nothing.
    return (str(file) if fingerprint is None else fingerprint.digest), config.seed


def _indented(cost: Cost) -> str:
    return "\n".join(f"  {line}" for line in str(cost).splitlines())
