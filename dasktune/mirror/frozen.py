"""Trials in Optuna's words: states, parameters with distributions, values, attributes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from dasktune.algos.distributions import distribution_of
from dasktune.engine.trials import TrialRecord
from dasktune.errors import InternalError
from dasktune.space import Float, Int
from dasktune.types import Direction, Metrics, Objective, Step, TrialState, Value

NUMBER: Final = "dasktune:number"
"""System attribute of every trial that is ours: its number in our study."""

STATES: Final[Mapping[TrialState, OptunaState]] = {
    TrialState.RUNNING: OptunaState.RUNNING,
    # Optuna knows no pause; what it calls waiting, any process of a user's may take and run.
    TrialState.PAUSED: OptunaState.RUNNING,
    TrialState.COMPLETE: OptunaState.COMPLETE,
    TrialState.PRUNED: OptunaState.PRUNED,
    TrialState.FAIL: OptunaState.FAIL,
}

MOST_OPTIONS: Final = 100
"""More numbers than these are a range, not options: Optuna stores all options with each trial."""

_Taken = tuple[str, Value, BaseDistribution]


class Translator:
    """Turns trials of one study into Optuna's; gives each parameter one distribution.

    Optuna wants the same kind of distribution, and the same options, wherever a parameter
    has the same name. The first that comes has the plain name; one that does not agree with
    it, because another tuner had another space, is called ``lr (2)``, and so on.

    Parameters
    ----------
    objective
        What the study optimises.
    """

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._distributions: dict[str, BaseDistribution] = {}
        self._values: dict[str, dict[tuple[type, Value], None]] = {}

    def adopt(self, distributions: Mapping[str, BaseDistribution]) -> None:
        """Take over parameters that the Optuna study has already."""
        self._distributions |= distributions

    def see(self, records: Iterable[TrialRecord]) -> None:
        """Take note of the values of trials whose domains are not known, such as a grid's.

        They become the options that a parameter has from then on, or if they are very many
        numbers, its range; unless the domain is known from another trial.
        """
        self._values = {}
        for record in records:
            for name, document in record.domains.items():
                if name not in self._distributions:
                    self._distributions[name] = distribution_of(document)
            if not record.point:
                for name, came in record.params.items():
                    value = _plain(came)
                    self._values.setdefault(name, {})[type(value), value] = None

    def translate(
        self, record: TrialRecord, metrics: Mapping[Step, Metrics], span: tuple[float, float]
    ) -> FrozenTrial:
        """Return a trial as Optuna has it, with the metrics of these steps.

        A value that is NaN or infinite becomes the infinity that is worst in its direction:
        Optuna refuses to store NaN as a result, and we rank them last, too. What it really
        was is in the attribute ``not finite``. A trial that is not at its end, and one that
        failed, has no values; several objectives have no intermediate ones: so Optuna wants
        it.

        Parameters
        ----------
        record
            The trial; its values must have been given to `see` if it has no domains.
        metrics
            By step.
        span
            When it began and ended, in epoch seconds.
        """
        state = STATES[record.state]
        taken = list(self._parameters(record))
        return FrozenTrial(
            number=record.number,
            trial_id=-1,
            state=state,
            value=None,
            values=self._results(record),
            datetime_start=datetime.fromtimestamp(span[0]),
            datetime_complete=datetime.fromtimestamp(span[1]) if state.is_finished() else None,
            params={name: value for name, value, _ in taken},
            distributions={name: distribution for name, _, distribution in taken},
            user_attrs=self._attributes(record),
            system_attrs={NUMBER: record.number},
            intermediate_values=self._intermediate(metrics),
        )

    def _results(self, record: TrialRecord) -> list[float] | None:
        if record.values is None or record.state not in (TrialState.COMPLETE, TrialState.PRUNED):
            return None
        pairs = zip(record.values, self._objective.directions, strict=True)
        return [
            value
            if math.isfinite(value)
            else (-math.inf if direction is Direction.MAXIMIZE else math.inf)
            for value, direction in pairs
        ]

    def _intermediate(self, metrics: Mapping[Step, Metrics]) -> dict[int, float]:
        if len(self._objective.metrics) > 1:
            return {}
        name = self._objective.metrics[0]
        return {
            step: float(metrics[step][name]) for step in sorted(metrics) if name in metrics[step]
        }

    def _attributes(self, record: TrialRecord) -> dict[str, Any]:
        """Return what Optuna has no place for; a user's own attribute has precedence."""
        found: dict[str, Any] = {
            "tuner": record.tuner if record.was_trained_here else None,
            "sequences": {name: repr(one) for name, one in record.sequences.items()},
        }
        if record.state.is_finished:
            found["steps"] = record.steps
            pairs = zip(self._objective.metrics, record.values or (), strict=False)
            if lost := {name: str(value) for name, value in pairs if not math.isfinite(value)}:
                found["not finite"] = lost
        if record.state is TrialState.FAIL:
            found["error"] = record.message or record.traceback
        return {**found, **record.user_attrs}

    # ------------------------------------------------------------------- parameters

    def _parameters(self, record: TrialRecord) -> Iterator[_Taken]:
        if record.point:
            for name, value in record.point.items():
                yield self._known(name, value, distribution_of(record.domains[name]))
        else:
            for name, came in record.params.items():
                yield self._unknown(name, _plain(came))

    def _known(self, name: str, value: Value, distribution: BaseDistribution) -> _Taken:
        """Place a value whose domain is known."""
        for called in _names(name):
            there = self._distributions.setdefault(called, distribution)
            if _agree(there, distribution):
                return called, value, distribution
        raise InternalError(f"there is no name for parameter {name!r}")

    def _unknown(self, name: str, value: Value) -> _Taken:
        """Place a value of which only the others beside it are known."""
        for called in _names(name):
            there = self._distributions.get(called)
            if there is None:
                seen = [one for _, one in self._values.get(name, ())]
                there = self._distributions[called] = _covering(seen)
            if (found := _within(value, there)) is not None:
                return called, found[0], there
        raise InternalError(f"there is no name for parameter {name!r}")


def _names(name: str) -> Iterator[str]:
    yield name
    position = 1
    while True:
        position += 1
        yield f"{name} ({position})"


def _agree(there: BaseDistribution, new: BaseDistribution) -> bool:
    """Return whether Optuna takes both under one name."""
    if isinstance(there, CategoricalDistribution):
        return bool(there == new)
    return type(there) is type(new) and vars(there)["log"] == vars(new)["log"]


def _within(value: Value, distribution: BaseDistribution) -> tuple[Value] | None:
    """Return a value as a distribution has it, in a tuple since it may be None; or None."""
    match distribution:
        case FloatDistribution(low=low, high=high, step=step):
            return (value,) if value in Float(low, high, step=step) else None
        case IntDistribution(low=low, high=high, step=step):
            return (value,) if value in Int(low, high, step=step) else None
        case CategoricalDistribution(choices=choices):
            for sought in (value, json.dumps(value)):
                for option in choices:
                    if option == sought and type(option) is type(sought):
                        return (option,)
    return None


def _covering(values: list[Value]) -> BaseDistribution:
    """Return a distribution that has these values, none of them twice."""
    whole = [one for one in values if type(one) is int]
    numbers = [one for one in values if type(one) is float] + [float(one) for one in whole]
    if len(values) > MOST_OPTIONS and len(whole) == len(values):
        return IntDistribution(min(whole), max(whole))
    if len(values) > MOST_OPTIONS and len(numbers) == len(values):
        return FloatDistribution(min(numbers), max(numbers))
    options: dict[Value, None] = {}
    for value in values:
        # To Optuna 1, 1.0 and True are one option: the later ones go by their text.
        options[json.dumps(value) if value in options else value] = None
    return CategoricalDistribution(list(options))


def _plain(value: object) -> Value:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return json.dumps(value, default=str)
