"""Answers to calls as Optuna has them: the line to write here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import ParamSpec, TypeVar

from dasktune.algos.base import Tuner, max_steps_problem
from dasktune.errors import call_problems, refuse

Given = ParamSpec("Given")
Returned = TypeVar("Returned")

PAGE = "docs/from-optuna.md shows both scripts side by side"

OF_STUDY: Mapping[str, str] = {
    "study_name": "name={!r}",
    "directions": "direction=..., a list, and metric=..., a list of as many names",
    "sampler": "study.optimize(dasktune.algos.Random(space, trials=..., sampler=sampler))",
    "pruner": "study.optimize(dasktune.algos.ASHA(space, ...)), which prunes",
}
"""Keywords of ``optuna.create_study``, and the words of dasktune for them."""

OF_LOADING: Mapping[str, str] = {"study_name": "name={!r}"}
"""Keywords of ``optuna.load_study``, and the words of dasktune for them."""

OF_OPTIMIZE: Mapping[str, str] = {
    "n_trials": "study.optimize(dasktune.algos.ASHA(space, trials={!r}, max_steps=...))",
    "timeout": "limits=dasktune.Limits(seconds={!r})",
    "n_jobs": "workers={!r}",
    "func": "dasktune.create_study(train, ...): the function that trains belongs to the study",
    "catch": "nothing: a failed trial does not end a study",
    "show_progress_bar": "progress={!r}",
    "gc_after_trial": "nothing",
}
"""Keywords of ``optuna.Study.optimize``, and the words of dasktune for them."""

GONE: Mapping[str, str] = {
    "mirror": "mirror is gone; `dasktune export STORAGE --study NAME --optuna URL`, or "
    "study.optuna_study(URL), writes the study into an Optuna storage",
}
"""Options of earlier versions, and what takes their place."""


def explained(
    hints: Mapping[str, str], example: str
) -> Callable[[Callable[Given, Returned]], Callable[Given, Returned]]:
    """Return a decorator that refuses Optuna's keywords with the words to write in their place.

    So are the options of `GONE`; a call that misses an argument is refused with the example.
    """

    def decorate(function: Callable[Given, Returned]) -> Callable[Given, Returned]:
        signature = inspect.signature(function)

        @wraps(function)
        def call(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
            refuse(
                f"{name} is Optuna's; write {hints[name].format(value)} ({PAGE})"
                for name, value in kwargs.items()
                if name in hints
            )
            refuse(GONE[name] for name in kwargs if name in GONE)
            shown = f", such as {example} ({PAGE})"
            refuse(call_problems(function.__name__, signature, args, kwargs, example=shown))
            return function(*args, **kwargs)

        return call

    return decorate


def tuner_problem(tuner: object) -> str | None:
    """Return the problem of a tuner, if it has one, with the line to write."""
    if isinstance(tuner, Tuner):
        return max_steps_problem(tuner)
    problem = f"tuner must be one of dasktune.algos, got {_brief(tuner)}"
    module = type(tuner).__module__
    if isinstance(tuner, type) and issubclass(tuner, Tuner):
        return f"{problem}; make one: {tuner.__name__}(space, ...)"
    if module.startswith("optuna.samplers"):
        return (
            f"{problem}; write dasktune.algos.Random(space, trials=..., max_steps=..., sampler=...)"
        )
    if module.startswith("optuna.pruners"):
        return f"{problem}; dasktune.algos.ASHA and the other tuners prune by themselves"
    if type(tuner).__name__ == "Space":
        return f"{problem}; write dasktune.algos.Random(space, trials=20, max_steps=...)"
    if inspect.isroutine(tuner):
        return (
            f"{problem}; the function that trains belongs to create_study, and the space to the "
            f"tuner ({PAGE})"
        )
    return problem


def _brief(value: object) -> str:
    if inspect.isroutine(value) or isinstance(value, type):
        return f"the {'class' if isinstance(value, type) else 'function'} {value.__qualname__}"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
