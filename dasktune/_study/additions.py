"""Additions to a study without running it: queued points, imported trials, attributes, notes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dasktune._driver.history import History
from dasktune._results.rows import objective_of
from dasktune._study.imported_trials import Earlier, earlier_trial, earlier_trials, plain_params
from dasktune._study.memory import StudyMemory
from dasktune.errors import ConfigurationError, refuse, shown, unknown
from dasktune.storage.verdicts import Verdicts
from dasktune.trainer.check_resume.verdict import device_of, verdict
from dasktune.types import Step, Value


class StudyAdditions:
    """Writes to a study what does not come from a tuner."""

    def __init__(self, memory: StudyMemory) -> None:
        self._memory = memory
        self._history = memory.history
        self._objective = objective_of(memory.row.spec)

    @property
    def queued(self) -> list[Mapping[str, Value]]:
        """The points that wait for the next tuner that draws configurations."""
        return queued_points(self._history)

    def enqueue_trial(self, params: Mapping[str, Value]) -> None:
        """Queue a point: the next new tuner that draws configurations tries it first.

        Parameters
        ----------
        params
            Values by coordinate of its space; missing ones are drawn.

        Raises
        ------
        ConfigurationError
            If it is no mapping, or trials were drawn before and none has a coordinate of this
            name. A new study knows no space yet: then `optimize` refuses unknown names, as it
            refuses values outside of the tuner's space, and `clear_queue` removes them.
        """
        if not isinstance(params, Mapping):
            raise ConfigurationError(f"params must be values by coordinate, got {shown(params)}")
        if not params:
            raise ConfigurationError(NOTHING_QUEUED)
        known = {name for record in self._memory.records.values() for name in record.domains}
        refuse(
            unknown("coordinate", name, sorted(known))
            for name in params
            if known and name not in known
        )
        queue_point(self._history, params)

    def clear_queue(self) -> None:
        """Forget the points that are queued."""
        clear_queue(self._history)

    def add_trial(
        self,
        params: Any,
        values: float | Iterable[float] | None = None,
        *,
        value: float | None = None,
        steps: Step = 1,
        user_attrs: Mapping[str, object] | None = None,
    ) -> int:
        """Add a trial that was trained elsewhere, with its result; return its number.

        It counts for `best_trial`, and samplers that learn begin with it.

        Parameters
        ----------
        params
            The hyper-parameters by name; or a finished ``optuna.trial.FrozenTrial``, alone,
            because it contains its values and steps.
        values, value
            The metric after `steps` steps, or one value for each objective.
        steps
            Number of steps that it was trained.
        """
        given = [each for each in (values, value) if each is not None]
        if hasattr(params, "distributions") and not hasattr(params, "state"):
            raise ConfigurationError(
                "a trial of Optuna must be a finished FrozenTrial, as in study.trials, got a "
                f"{type(params).__name__}"
            )
        if hasattr(params, "distributions"):
            if given or user_attrs is not None or steps != 1:
                raise ConfigurationError(
                    "a trial of Optuna must be given alone, because it contains its values, steps "
                    "and user_attrs"
                )
            trial = earlier_trial(params, params.user_attrs, self._objective)
        else:
            if len(given) != 1:
                got = "both" if given else "none"
                raise ConfigurationError(
                    f"exactly one of values and value must be given, got {got}"
                )
            trial = Earlier.of(params, given[0], steps, user_attrs or {}, self._objective)
        return self._add([trial])[0]

    def warm_start(self, source: object) -> list[int]:
        """Add the finished trials of an Optuna study or a data frame; return their numbers.

        Parameters
        ----------
        source
            An ``optuna.Study`` with the same direction; or a data frame with a column
            ``value`` (or one for each metric of the study), optionally ``steps``, and a column
            for each coordinate, optionally with ``params_`` before its name.

        Raises
        ------
        ConfigurationError
            If it is neither, its directions differ, or a column is missing.
        """
        return self._add(earlier_trials(source, self._objective))

    def _add(self, trials: Iterable[Earlier]) -> list[int]:
        with self._memory.alone():
            self._memory.catch_up()
            records = self._memory.records
            first = len(records)
            added = [trial.record(first + place) for place, trial in enumerate(trials)]
            self._memory.recorder().add(added)
            records.update((record.number, record) for record in added)
        return [record.number for record in added]

    def set_user_attr(self, name: str, value: object) -> None:
        """Attach a JSON value to the study under a name."""
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            raise ConfigurationError(
                f"user attribute {name!r} must be a JSON value, got {value!r}"
            ) from None
        self._history.note("user_attr", name=name, value=value)

    def record_check(
        self,
        ok: bool,
        text: str,
        *,
        device: str | None = None,
        splits: Iterable[Step] = (),
        steps: Step = 0,
        files: Mapping[str, str] | None = None,
    ) -> None:
        """Record the result of `check_resume` for all studies of this trainer and config.

        Parameters
        ----------
        ok, text, splits, steps, files
            As in `dasktune.ResumeReport`; the text is its ``str``.
        device
            The device of the check; None if it was that of the study's stages.

        Raises
        ------
        StorageError
            If it cannot be recorded.
        """
        outcome = verdict(
            self._memory.row.spec["fingerprint"],
            device_of(self._memory.options.needs) if device is None else device,
            ok=ok,
            text=text,
            splits=tuple(splits),
            steps=steps,
            files=files,
        )
        Verdicts(self._memory.database, self._memory.store.files).record(outcome)


NOTHING_QUEUED: Final = "a queued trial must have at least one value, got none"


def queued_points(history: History) -> list[Mapping[str, Value]]:
    """Return the points that wait for the next tuner that draws configurations."""
    points = [note["point"] for note in history.notes("queued")]
    taken = sum(len(begun.inputs.get("queued", ())) for begun in history.begun.values())
    cleared = sum(note["count"] for note in history.notes("unqueued"))
    return points[taken + cleared :]


def queue_point(history: History, params: Mapping[str, Value]) -> None:
    """Queue a point whose names are known."""
    history.note("queued", point=plain_params(params))


def clear_queue(history: History) -> None:
    """Forget the points that are queued."""
    history.note("unqueued", count=len(queued_points(history)))
