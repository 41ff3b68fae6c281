"""Trials that were trained outside of a study, with their results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from dasktune._engine.trials import ADDED, COLUMNS, TrialRecord
from dasktune._numbers import measured, whole_of
from dasktune.errors import ConfigurationError, refuse, shown
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
        problems, number = [], measured(values)
        given = [number]
        is_no_list = isinstance(values, str | bytes | Mapping) or getattr(values, "shape", 1) == ()
        if number is None and isinstance(values, Iterable) and not is_no_list:
            given = list(map(measured, values))
        numbers = tuple(value for value in given if value is not None)
        if len(numbers) < len(given) or len(numbers) != len(objective.metrics):
            names = ", ".join(objective.metrics)
            problems.append(
                f"values must be one for each of {names}, as numbers, got {shown(values)}"
            )
        if (whole := whole_of(steps)) is None:
            problems.append(f"steps must be an int >= 1, got {shown(steps)}")
        try:
            json.dumps(attributes := dict(user_attrs))
        except (TypeError, ValueError):
            problems.append(f"user_attrs must be JSON values by name, got {shown(user_attrs)}")
        refuse(problems)
        return cls(
            params=plain_params(params), values=numbers, steps=whole or 1, user_attrs=attributes
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
        earlier_trial(trial, {"from": "optuna"}, objective)
        for trial in study.get_trials(deepcopy=False)
        if trial.state.name == "COMPLETE"
    ]


def earlier_trial(trial: Any, user_attrs: Mapping[str, object], objective: Objective) -> Earlier:
    """Return a finished trial of Optuna."""
    if trial.state.name != "COMPLETE":
        raise ConfigurationError(f"a trial of Optuna must be COMPLETE, got {trial.state.name}")
    steps = max(trial.last_step or 0, 1)
    return Earlier.of(trial.params, trial.values, steps, user_attrs, objective)


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
    for row, has in zip(frame.to_dict("records"), frame.notna().to_dict("records"), strict=True):
        if row.get("state", "COMPLETE") != "COMPLETE":
            continue
        params = {name.removeprefix("params_"): row[name] for name in others if has[name]}
        values = [row[name] for name in wanted]
        steps = row.get("steps", 1)  # a column with gaps has floats
        steps = int(steps) if isinstance(steps, float) and steps.is_integer() else steps
        trials.append(Earlier.of(params, values, steps, {}, objective))
    return trials
