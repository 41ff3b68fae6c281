"""The output of the command ``preview``: the costs of the studies of some files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from dasktune._study.config import StudyConfig
from dasktune._study.create import config_of
from dasktune._study.preview import needs_of_configurations, refuse_unmet
from dasktune.algos.auto import FURTHEST
from dasktune.algos.base import Tuner, known_configurations
from dasktune.cli.pools import Pool, PoolOptions, configured
from dasktune.cli.study_file import load
from dasktune.errors import ConfigurationError, refuse
from dasktune.graph.cost import Cost, Costs, StudyTrials, cost_of, costs_of
from dasktune.needs import Offer
from dasktune.simulate.pool import offer_problems, offers_of
from dasktune.space import Configuration
from dasktune.trainer.base import change_problems_of
from dasktune.types import Step

FIELDS = (
    *("trials", "steps_requested", "steps_unique", "merge_rate", "critical_path"),
    *("checkpoints", "workers", "bound_steps", "notes"),
)


def costs_of_files(
    files: Sequence[Path], settings: Sequence[str], *, pool: PoolOptions
) -> tuple[Costs, bool]:
    """Return the costs of files' studies, and whether all of them train every trial in full.

    Fingerprints and seeds decide which studies share states. A single study needs only its
    trials, and its needs if there are classes of workers.

    Raises
    ------
    ConfigurationError
        If a file cannot be loaded, its trials are not known beforehand, its trainer refuses them,
        or there are several files and classes of workers.
    ClusterError
        If no worker meets the needs of a trial.
    """
    workers = _only(pool.pools(default=1))
    offers = pool.offers_of(workers)
    refuse(offer_problems(offers, workers))
    if isinstance(workers, Mapping):
        if len(files) > 1:
            raise ConfigurationError("classes of workers must come with one file, got several")
        return _on_classes(files[0], settings, list(offers_of(workers, offers)))
    studies, in_full = [], True
    for file in [file.absolute() for file in files]:  # a file may change the working folder
        loaded = cache(partial(load, file, settings))
        config = config_of(lambda loaded=loaded: loaded().study())  # type: ignore[misc]
        tuner = loaded().tuner()
        fingerprint, seed = _origin(file, config) if len(files) > 1 else ("", 0)
        known = _known_trials(tuner)
        if config is not None:
            _refuse_changes(config, known, tuner.max_steps)
        in_full = in_full and tuner.trains_in_full
        trials = tuple((each.sequences, tuner.max_steps) for each in known)
        seeds = tuple(seed + each.seed for each in known)
        studies.append(
            StudyTrials(trials=trials, seeds=seeds, fingerprint=fingerprint, notes=_notes(tuner))
        )
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


def _known_trials(tuner: Tuner) -> tuple[Configuration, ...]:
    """Return the configurations of a tuner that knows how far it may train each of them.

    Raises
    ------
    ConfigurationError
        If it knows its configurations, or how far it trains them, only while it runs.
    """
    if tuner.max_steps >= FURTHEST:
        raise ConfigurationError(
            f"max_steps of {type(tuner).__name__} must be given for a preview, got a budget of "
            "time alone: how many steps it trains is known only while it runs"
        )
    return known_configurations(tuner)


def _notes(tuner: Tuner) -> tuple[str, ...]:
    """Return the notes on a tuner: its advice, and the budget that ends it sooner."""
    if tuner.most_steps is None:
        return tuple(tuner.advice)
    return (*tuner.advice, f"its budget ends it after {tuner.most_steps:,} steps of all trials")


def _refuse_changes(
    config: StudyConfig, configurations: Sequence[Configuration], max_steps: Step
) -> None:
    """Refuse configurations in which values change that the trainer cannot change."""
    sequences = (each.sequences for each in configurations)
    refuse(change_problems_of(config.trainer, sequences, max_steps, config.config or {}))


def _origin(file: Path, config: StudyConfig | None) -> tuple[str, int]:
    """Return fingerprint and training seed of a file's study.

    Raises
    ------
    ConfigurationError
        If the file creates no study.
    """
    if config is None:
        raise ConfigurationError(f"{file} must call create_study, or nothing says what it trains")
    fingerprint = config.fingerprint()
    # A study without a trainer shares nothing.
    return (str(file) if fingerprint is None else fingerprint.digest), config.seed


def _on_classes(file: Path, settings: Sequence[str], offers: Sequence[Offer]) -> tuple[Costs, bool]:
    """Return the cost of a file's study on workers of several classes, as `costs_of_files` does."""
    config, tuner = configured(file, settings)
    known = _known_trials(tuner)
    _refuse_changes(config, known, tuner.max_steps)
    sequences = [each.sequences for each in known]
    needs = needs_of_configurations(sequences, tuner.searched_space, config.needs)
    refuse_unmet(needs, offers)
    cost = cost_of(
        ((each, tuner.max_steps) for each in sequences),
        workers=len(offers),
        seeds=(config.seed + each.seed for each in known),
        needs=needs,
        offers=offers,
    )
    cost = replace(cost, notes=_notes(tuner))
    return Costs(studies=(cost,), steps_unique=cost.steps_unique), tuner.trains_in_full


def _only(pools: Sequence[Pool]) -> Pool:
    """Return the one pool that ``--workers`` names."""
    if len(pools) > 1:
        raise ConfigurationError(f"--workers must be one number here, got {len(pools)}")
    return pools[0]


def _indented(cost: Cost) -> str:
    return "\n".join(f"  {line}" for line in str(cost).splitlines())
