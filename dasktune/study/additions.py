"""What users put into a study beside running it: points to try, trials from elsewhere, notes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from dasktune.driver.recorder import Recorder
from dasktune.errors import ConfigurationError
from dasktune.graph.attempts import DispatchOptions
from dasktune.results.results import StudyResults
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.database.database import Database
from dasktune.storage.database.schema import StudyRow
from dasktune.study.imported_trials import Earlier, earlier_trials, plain_params
from dasktune.types import Step, Value


class StudyAdditions(StudyResults):
    """The part of a study that is written without a tuner."""

    def __init__(
        self, row: StudyRow, database: Database, store: CheckpointStore, options: DispatchOptions
    ) -> None:
        super().__init__(row, database, store, options)
        self._running = threading.Lock()

    @property
    def queued(self) -> list[Mapping[str, Value]]:
        """The points that wait for the next tuner that draws configurations."""
        points = [note["point"] for note in self._history.notes("queued")]
        taken = sum(len(one["inputs"].get("queued", ())) for one in self._history.begun)
        cleared = sum(note["count"] for note in self._history.notes("unqueued"))
        return points[taken + cleared :]

    def enqueue_trial(self, params: Mapping[str, Value]) -> None:
        """Let the next new tuner that draws configurations try this one first.

        Parameters
        ----------
        params
            Values by coordinate of its space; those that are missing are drawn.
        """
        self._history.note("queued", point=plain_params(params))

    def clear_queue(self) -> None:
        """Forget the points that are queued."""
        self._history.note("unqueued", count=len(self.queued))

    def add_trial(
        self,
        params: Mapping[str, Value],
        values: float | Iterable[float],
        *,
        steps: Step = 1,
        user_attrs: Mapping[str, object] | None = None,
    ) -> int:
        """Add a trial that was trained elsewhere, with its result; return its number.

        It counts for `best_trial`, and samplers that learn begin with it.

        Parameters
        ----------
        params
            Values by coordinate of the space.
        values
            The metric after `steps` steps, or one for each objective.
        steps
            How far it was trained.
        user_attrs
            JSON values by name.
        """
        return self._add([Earlier.of(params, values, steps, user_attrs or {}, self.objective)])[0]

    def warm_start(self, source: object) -> list[int]:
        """Add the finished trials of an Optuna study or a data frame; return their numbers.

        Parameters
        ----------
        source
            An ``optuna.Study`` with the same direction, or a data frame with a column
            ``value`` (or one for each metric of the study), perhaps ``steps``, and one for
            each coordinate, perhaps with ``params_`` before its name.

        Raises
        ------
        ConfigurationError
            If it is neither, its directions are others, or a column is missing.
        """
        return self._add(earlier_trials(source, self.objective))

    def _add(self, trials: Iterable[Earlier]) -> list[int]:
        with self._alone():
            self._catch_up()
            first = len(self.records)
            new = [one.record(first + at) for at, one in enumerate(trials)]
            self._recorder().add(new)
            self.records.update((one.number, one) for one in new)
        return [one.number for one in new]

    def set_user_attr(self, name: str, value: object) -> None:
        """Attach a JSON value to the study under a name."""
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            raise ConfigurationError(
                f"user attribute {name!r} must be a JSON value, got {value!r}"
            ) from None
        self._history.note("user_attr", name=name, value=value)

    def record_check(self, ok: bool, text: str) -> None:
        """Keep what `check_resume` found about this trainer."""
        fingerprint = self._row.spec["fingerprint"]
        self._history.note("check", fingerprint=fingerprint, ok=ok, text=text)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Refuse to run two tuners at a time: they would share one dispatcher."""
        if not self._running.acquire(blocking=False):
            raise ConfigurationError(
                f"study {self.name!r} must run one tuner at a time; another thread is running one"
            )
        try:
            yield
        finally:
            self._running.release()

    def _recorder(self, run: str = "") -> Recorder:
        return Recorder(
            self.database,
            self._row.id,
            self.plan.root_key_of,
            lambda: self._history.next_number,
            self._history.remember,
            self._take_found,
            run,
        )
