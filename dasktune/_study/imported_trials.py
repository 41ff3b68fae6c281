"""Trials that were trained outside of a study, with their results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from dasktune._engine.trials import ADDED, COLUMNS, TrialRecord
from dasktune.errors import ConfigurationError, refuse
from dasktune.sequences import as_sequence
from dasktune.types import Objective, Step, TrialState, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """A finished trial that was trained elsewhere: a value for each objective after its steps."""

    params: Mapping[str, Value]
    values: tuple[float, ...]
    steps: Step
    user_attrs: Mapping[str, object]

    @classmethod
    def of(
        cls,
        params: Mapping[str, Value],
        values: object,
        steps: Step,
        user_attrs: Mapping[str, object],
        objective: Objective,
    ) -> Self:
        """Return the trial of checked values.

        Raises
        ------
        ConfigurationError
            If there is not one value for each objective, or a parameter is not a plain value.
        """
        problems = []
        listed = [values] if isinstance(values, int | float) else values
        if not isinstance(listed, Iterable) or isinstance(listed, str):
            listed = []
        numbers = tuple(float(value) for value in listed)
        if len(numbers) != len(objective.metrics):
            names = ", ".join(objective.metrics)
            problems.append(f"values must be one for each of {names}, got {values!r}")
        if type(steps) is not int or steps < 1:
            problems.append(f"steps must be an int >= 1, got {steps!r}")
        refuse(problems)
        json.dumps(dict(user_attrs))
        return cls(
            params=plain_params(params), values=numbers, steps=steps, user_attrs=dict(user_attrs)
        )

    def record(self, number: int) -> TrialRecord:
        """Return the record of the trial in a study, where it gets this number."""
        return TrialRecord(
            number=number,
            tuner=ADDED,
            local=number,
            params=self.params,
            sequences={name: as_sequence(value) for name, value in self.params.items()},
            max_steps=self.steps,
            state=TrialState.COMPLETE,
            steps=self.steps,
            values=self.values,
            user_attrs=dict(self.user_attrs),
        )


def plain_params(params: Mapping[str, Value]) -> dict[str, Value]:
    """Return plain values by name; NumPy scalars become Python's.

    Raises
    ------
    ConfigurationError
        If `params` is not a mapping of names to plain values.
    """
    if not isinstance(params, Mapping):
        raise ConfigurationError(f"params must be values by name, got {params!r}")
    plain: dict[str, Value] = {}
    for name, value in params.items():
        if not isinstance(name, str):
            raise ConfigurationError(f"names of params must be strings, got {name!r}")
        try:
            plain[name] = as_sequence(value)(0)
        except ConfigurationError as error:
            raise ConfigurationError(*(f"{name}: {text}" for text in error.problems)) from error
    return plain


def earlier_trials(source: Any, objective: Objective) -> list[Earlier]:
    """Return the finished trials of an Optuna study or of a data frame.

    Raises
    ------
    ConfigurationError
        If `source` is neither, its directions differ, or a column is missing.
    """
    if hasattr(source, "get_trials") and hasattr(source, "directions"):
        return _of_optuna(source, objective)
    if hasattr(source, "columns") and hasattr(source, "to_dict"):
        return _of_frame(source, objective)
    raise ConfigurationError(
        f"source must be an optuna.Study or a pandas.DataFrame, got {type(source).__name__}"
    )


def _of_optuna(study: Any, objective: Objective) -> list[Earlier]:
    given = [direction.name.lower() for direction in study.directions]
    wanted = [direction.value for direction in objective.directions]
    if given != wanted:
        raise ConfigurationError(
            f"the Optuna study must have the directions {', '.join(wanted)}, got {', '.join(given)}"
        )
    return [
        Earlier.of(
            trial.params,
            trial.values,
            max((trial.last_step or 0), 1),
            {"from": "optuna"},
            objective,
        )
        for trial in study.get_trials(deepcopy=False)
        if trial.state.name == "COMPLETE"
    ]


def _of_frame(frame: Any, objective: Objective) -> list[Earlier]:
    names = list(map(str, frame.columns))
    single = len(objective.metrics) == 1 and "value" in names
    wanted = ["value"] if single else list(objective.metrics)
    missing = [name for name in wanted if name not in names]
    if missing:
        raise ConfigurationError(
            f"the data frame must have columns {', '.join(wanted)}, got {', '.join(names)}"
        )
    others = [name for name in names if name not in {*COLUMNS, *wanted, "seed"}]
    # A data frame of Optuna also has times and attributes.
    others = [name for name in others if name.startswith("params_")] or others
    trials = []
    for row in frame.to_dict("records"):
        if row.get("state", "COMPLETE") != "COMPLETE":
            continue
        params = {
            name.removeprefix("params_"): row[name] for name in others if row[name] == row[name]
        }
        values = [row[name] for name in wanted]
        if not all(isinstance(value, int | float) for value in values):
            raise ConfigurationError(f"values must be numbers, got {values!r}")
        trials.append(Earlier.of(params, values, int(row.get("steps", 1)), {}, objective))
    return trials
