"""The cost of training a whole space, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import overload

from dasktune._driver.waiting import unmet_needs_text
from dasktune.algos.grid import Filter, Grid
from dasktune.errors import ClusterError, ConfigurationError, refuse
from dasktune.graph.cost import Cost, Costs, StudyTrials, cost_of, costs_of
from dasktune.graph.save_policy import SavePolicy
from dasktune.needs import NO_NEEDS, Amounts, GivenNeeds, Needs, NeedsFunction, Offer, needs_from
from dasktune.simulate.pool import offer_problems, offers_of, pool_problems
from dasktune.space import Space, contradictions, with_branches
from dasktune.space.space import space_problem
from dasktune.storage.codec import encode
from dasktune.trainer.base import GivenTrainer, change_problems_of, problems_of
from dasktune.trainer.given import as_trainer
from dasktune.trainer.given_config import plain_config
from dasktune.trainer.isolation import give_own_generator
from dasktune.trainer.lifecycle import TrainerRun
from dasktune.types import Sequences, Step


@overload
def preview(
    space: Space,
    max_steps: Step,
    workers: int | Mapping[str, int] = 1,
    *,
    filter: Filter | None = None,
    checkpoint_every: int | None = None,
    trainer: GivenTrainer | None = None,
    config: Mapping[str, object] | None = None,
    needs: GivenNeeds | NeedsFunction | None = None,
    offers: Mapping[str, Amounts] | None = None,
) -> Cost: ...


@overload
def preview(
    space: Iterable[Space],
    max_steps: Step,
    workers: int = 1,
    *,
    filter: Filter | None = None,
    checkpoint_every: int | None = None,
) -> Costs: ...


def preview(
    space: Space | Iterable[Space],
    max_steps: Step,
    workers: int | Mapping[str, int] = 1,
    *,
    filter: Filter | None = None,
    checkpoint_every: int | None = None,
    trainer: GivenTrainer | None = None,
    config: Mapping[str, object] | None = None,
    needs: GivenNeeds | NeedsFunction | None = None,
    offers: Mapping[str, Amounts] | None = None,
) -> Cost | Costs:
    """Return the cost of training every configuration of a space to `max_steps` steps.

    Parameters
    ----------
    space
        A space with finitely many points; or several, one for each of several studies with the
        same trainer, config, data and training seed, which share their states.
    max_steps
        Steps of each trial.
    workers
        For the lower bound on the wall time: their number, or the numbers by class for one
        space.
    filter
        As for `dasktune.algos.Grid`.
    checkpoint_every
        As for `dasktune.create_study`.
    trainer, config
        The class that trains, and its config: one trainer is built, in this process, to know
        the bytes of a state. None leaves them out. An optimizer that allocates its state at the
        first step needs more than that. Values whose change it cannot follow, as far as it knows
        that, are refused. For one space only.
    needs
        As for `dasktune.create_study`. If `workers` are numbers by class, needs that no worker
        meets are refused, and the bound counts for each stage only workers that meet its needs.
        For one space only.
    offers
        As for `dasktune.simulate`: the amounts and tags that the workers of a class have, by
        class.

    Raises
    ------
    ConfigurationError
        If an argument is invalid, or one for a single space is given for several.
    ClusterError
        If no worker meets the needs of a trial.

    Examples
    --------
    >>> from dasktune.sequences import Constant, MultiStep
    >>> from dasktune.space import Space
    >>> space = Space(lr=[Constant(0.1), MultiStep(0.1, milestones=[30], gamma=0.1)])
    >>> print(preview(space, max_steps=60, workers=2))
    2 trials ask for 120 steps; 90 are unique (75%)
    merge rate p = 1.333
    at least 60 steps of wall time on 2 workers; longest trial 60 steps
    3 checkpoints

    A space that is part of another adds nothing to train:

    >>> print(preview([space, Space(lr=[Constant(0.1)])], max_steps=60))
    2 studies ask for 180 steps; 90 are unique, 150 if they shared nothing
    merge rate q = 2.000; p = 1.333, 1.000
    """
    saves = SavePolicy(every=checkpoint_every)
    if isinstance(space, Mapping) or not isinstance(space, Iterable | Space):
        raise ConfigurationError(space_problem(space, "a Space, or several"))
    if isinstance(space, Space):
        tuner = Grid(space, max_steps=max_steps, filter=filter)
        trials = _trials(tuner)
        sequences = [each for each, _ in trials]
        own, pool = needs_of_configurations(sequences, space, needs), list(_pool(workers, offers))
        cost = cost_of(
            trials,
            workers=len(pool) if isinstance(workers, Mapping) else workers,
            saves=saves,
            needs=own if pool else (),
            offers=pool,
        )
        cost = replace(cost, notes=tuple(tuner.advice))
        if pool:
            refuse_unmet(own, pool)
        if trainer is None:
            return cost
        made = as_trainer(trainer)
        given = plain_config(made, config)
        refuse(change_problems_of(made, sequences, max_steps, given))
        return replace(cost, state_nbytes=_state_nbytes(made, given, trials[0][0]))
    if trainer is not None:
        raise ConfigurationError(
            f"trainer must be None for several spaces, got {trainer.__qualname__}"
        )
    if needs is not None or offers is not None or isinstance(workers, Mapping):
        raise ConfigurationError("needs, offers and classes of workers are for one space only")
    tuners = [Grid(each, max_steps=max_steps, filter=filter) for each in space]
    studies = (StudyTrials(trials=_trials(each), notes=tuple(each.advice)) for each in tuners)
    return costs_of(studies, workers=workers, saves=saves)


def _pool(
    workers: int | Mapping[str, int], offers: Mapping[str, Amounts] | None
) -> Iterator[Offer]:
    """Return the offers of the workers; none for a plain number of workers."""
    refuse(
        [
            *(pool_problems(workers) if isinstance(workers, Mapping) else ()),
            *offer_problems(offers, workers),
        ]
    )
    return offers_of(workers, offers) if isinstance(workers, Mapping) else iter(())


def needs_of_configurations(
    configurations: Iterable[Sequences],
    space: Space | None,
    needs: GivenNeeds | NeedsFunction | None,
) -> list[Needs]:
    """Return the needs of each configuration: those of its study, and of its branches.

    Raises
    ------
    ConfigurationError
        If needs contradict each other, or a function does not give any.
    """
    of_study = NO_NEEDS if callable(needs) else Needs.of(needs)
    searched = Space() if space is None else space
    refuse(contradictions(searched, of_study))
    return [
        with_branches(
            needs_from(needs, {name: each(0) for name, each in sequences.items()})
            if callable(needs)
            else of_study,
            searched,
            sequences,
        )
        for sequences in configurations
    ]


def refuse_unmet(needs: Iterable[Needs], pool: Sequence[Offer]) -> None:
    """Refuse trials whose needs no worker meets.

    Raises
    ------
    ClusterError
        With the needs and what the workers have.
    """
    unmet: dict[Needs, list[int]] = {}
    for number, each in enumerate(needs):
        if not any(map(each.fits, pool)):
            unmet.setdefault(each, []).append(number)
    if unmet:
        raise ClusterError(unmet_needs_text(unmet, pool))


def _trials(tuner: Grid) -> tuple[tuple[Sequences, Step], ...]:
    return tuple((each.sequences, tuner.max_steps) for each in tuner.configurations)


def _state_nbytes(trainer: type, config: Mapping[str, object], sequences: Sequences) -> int:
    """Return the bytes of the state of a trainer before its first step."""
    refuse(problems_of(trainer))
    give_own_generator()
    values = {name: function(0) for name, function in sequences.items()}
    run = TrainerRun.start(trainer, values, config=config, seed=0, device="cpu")
    return encode(run.state()).nbytes
