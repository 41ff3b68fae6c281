"""Translation of trials into Optuna's: states, parameters, distributions, values, attributes."""

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

from dasktune._engine.trials import TrialRecord
from dasktune.algos.optuna_sampler import distribution_of
from dasktune.errors import InternalError
from dasktune.mirror.runs import plain
from dasktune.space import Float, Int
from dasktune.types import Direction, Metrics, Objective, Step, TrialState, Value

NUMBER: Final = "dasktune:number"
"""System attribute of each trial of a snapshot: its number in our study."""

STATES: Final[Mapping[TrialState, OptunaState]] = {
    TrialState.RUNNING: OptunaState.RUNNING,
    # Optuna has no paused state, and any process may take a trial that is WAITING and run it.
    TrialState.PAUSED: OptunaState.RUNNING,
    TrialState.COMPLETE: OptunaState.COMPLETE,
    TrialState.PRUNED: OptunaState.PRUNED,
    TrialState.FAIL: OptunaState.FAIL,
}

MOST_OPTIONS: Final = 100
"""Numbers above this count become a range: Optuna stores all options with each trial."""

_Parameter = tuple[str, Value, BaseDistribution]


class Translator:
    """Translates the trials of a study into Optuna's; each parameter gets one distribution.

    Optuna needs one kind of distribution, and the same options, for all parameters of one name.
    The first parameter has the plain name. If another tuner has another space, its parameter is
    called ``lr (2)``, and so on.

    A grid has no domains. Its values become the options of a parameter, or its range if they are
    more than `MOST_OPTIONS` numbers.
    """

    def __init__(self, objective: Objective, records: Iterable[TrialRecord]) -> None:
        self._objective = objective
        self._distributions: dict[str, BaseDistribution] = {}
        self._values: dict[str, dict[tuple[type, Value], None]] = {}
        for record in records:
            for name, document in record.domains.items():
                if name not in self._distributions:
                    self._distributions[name] = distribution_of(document)
            if not record.point:
                for name, param in record.params.items():
                    value = plain(param)
                    self._values.setdefault(name, {})[type(value), value] = None

    def translate(
        self, record: TrialRecord, metrics: Mapping[Step, Metrics], span: tuple[float, float]
    ) -> FrozenTrial:
        """Return a trial as an Optuna trial, with its metrics, and its start and end.

        A value that is NaN or infinite becomes the infinity that is worst in its direction:
        Optuna does not store NaN as a result, and our tuners rank such trials last, too. The
        attribute ``not finite`` has the original value. As Optuna requires, running and failed
        trials have no values, and with several objectives there are no intermediate values.
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
        """Return facts that have no field in Optuna; the user's own attributes have precedence."""
        attributes: dict[str, Any] = {
            "tuner": record.tuner if record.was_trained_here else None,
            "sequences": {name: repr(sequence) for name, sequence in record.sequences.items()},
        }
        if record.state.is_finished:
            attributes["steps"] = record.reached
            pairs = zip(self._objective.metrics, record.values or (), strict=False)
            if lost := {name: str(value) for name, value in pairs if not math.isfinite(value)}:
                attributes["not finite"] = lost
        if record.state is TrialState.FAIL:
            attributes["error"] = record.message or record.traceback
        return {**attributes, **record.user_attrs}

    # ------------------------------------------------------------------- parameters

    def _parameters(self, record: TrialRecord) -> Iterator[_Parameter]:
        if record.point:
            for name, value in record.point.items():
                yield self._known(name, value, distribution_of(record.domains[name]))
        else:
            for name, param in record.params.items():
                yield self._unknown(name, plain(param))

    def _known(self, name: str, value: Value, distribution: BaseDistribution) -> _Parameter:
        """Return a value with a known domain under the first name whose distribution fits."""
        for label in _names(name):
            known = self._distributions.setdefault(label, distribution)
            if _agree(known, distribution):
                return label, value, distribution
        raise InternalError(f"no name fits parameter {name!r}")

    def _unknown(self, name: str, value: Value) -> _Parameter:
        """Return a value without a domain; the values of other trials give its distribution."""
        for label in _names(name):
            known = self._distributions.get(label)
            if known is None:
                values = [seen for _, seen in self._values.get(name, ())]
                known = self._distributions[label] = _covering(values)
            if (option := _within(value, known)) is not None:
                return label, option[0], known
        raise InternalError(f"no name fits parameter {name!r}")


def _names(name: str) -> Iterator[str]:
    yield name
    position = 1
    while True:
        position += 1
        yield f"{name} ({position})"


def _agree(known: BaseDistribution, new: BaseDistribution) -> bool:
    """Return whether Optuna accepts both distributions under one name."""
    if isinstance(known, CategoricalDistribution):
        return bool(known == new)
    return type(known) is type(new) and vars(known)["log"] == vars(new)["log"]


def _within(value: Value, distribution: BaseDistribution) -> tuple[Value] | None:
    """Return `(value,)` as the distribution has it, or None if it is outside."""
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
    """Return a distribution that has these different values."""
    whole = [value for value in values if type(value) is int]
    numbers = [value for value in values if type(value) is float] + [float(n) for n in whole]
    if len(values) > MOST_OPTIONS and len(whole) == len(values):
        return IntDistribution(min(whole), max(whole))
    if len(values) > MOST_OPTIONS and len(numbers) == len(values):
        return FloatDistribution(min(numbers), max(numbers))
    options: dict[Value, None] = {}
    for value in values:
        # For Optuna 1, 1.0 and True are one option: the second and third become text.
        options[json.dumps(value) if value in options else value] = None
    return CategoricalDistribution(list(options))
