"""Study configurations: the checked arguments of `dasktune.create_study`, as a value."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from dasktune._driver.numerics import PORTABLE
from dasktune._engine.scaling import Scale, one_device_text
from dasktune._numbers import make_plain, whole_of
from dasktune._results.keep import DEFAULT
from dasktune._study.folder import from_folder
from dasktune.errors import ConfigurationError, name_problems, refuse, shown, unknown
from dasktune.graph.attempts import LOAD_SECONDS, LOOKAHEAD_SECONDS, DispatchOptions
from dasktune.graph.audits import SHARE, audit_problems
from dasktune.graph.fair_shares import weight_problems
from dasktune.graph.save_policy import SavePolicy
from dasktune.mirror import Logger
from dasktune.needs import NO_NEEDS, GivenNeeds, Needs, NeedsFunction, needs_from, needs_problems
from dasktune.storage.layout import slug
from dasktune.storage.redaction import redacted
from dasktune.storage.retention import Keep, Retention, bytes_of, retention_problems
from dasktune.storage.verdicts import Verdicts
from dasktune.trainer.base import (
    LOGGERS,
    divides,
    division_problem,
    metric_problems_of,
    problems_of,
)
from dasktune.trainer.check_resume.verdict import with_known_files
from dasktune.trainer.environment import environment
from dasktune.trainer.fingerprint.fingerprint import RULE, Fingerprint, TakenFingerprint, taken
from dasktune.trainer.given_config import plain_config
from dasktune.trainer.metrics import metric_names
from dasktune.types import Direction, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyConfig:
    """The checked arguments of `dasktune.create_study`, which describes them.

    Neither the store nor the database is touched here.

    Raises
    ------
    ConfigurationError
        If an argument is invalid: all problems at once.
    """

    trainer: type | None
    name: str
    metric: str | Iterable[str]
    storage: str | os.PathLike[str] | None = None
    database: str | None = None
    direction: str | Direction | Iterable[str | Direction] | None = None
    load_if_exists: bool = False
    if_changed: str = "refuse"
    seed: int = 0
    config: Mapping[str, object] | None = None
    report_every: int = 1
    checkpoint_every: int | None = None
    merge: bool = True
    needs: GivenNeeds | NeedsFunction | None = None
    scale: Scale | None = None
    depends_on: Iterable[object] = ()
    reuse: str = "code"
    portable: bool | None = None
    on_nan: str = "rank"
    loggers: Iterable[Logger] = ()
    budget: str | int | None = None
    keep: str = DEFAULT
    audit: float = SHARE
    weight: float = 1.0
    folder: Path | None = None
    """Where relative paths start; None: the working directory."""
    taken: TakenFingerprint | None = field(default=None, repr=False, compare=False)
    """The fingerprint with which the study was opened; `spec` sets it."""
    read_files: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """The files that checks of this trainer have seen it read; `recall_files` sets it."""

    def __post_init__(self) -> None:
        """Turn iterables into tuples and lists, then refuse all problems at once."""
        if not isinstance(self.metric, str):
            object.__setattr__(self, "metric", _as_list(self.metric))
        if not isinstance(self.direction, str | Direction | None):
            object.__setattr__(self, "direction", _as_list(self.direction))
        make_plain(self, "seed", "report_every", "checkpoint_every", "budget", "audit", "weight")
        object.__setattr__(self, "depends_on", tuple(self.depends_on))
        if isinstance(self.loggers, Iterable):
            brought = getattr(self.trainer, LOGGERS, ())
            object.__setattr__(self, "loggers", (*self.loggers, *brought))
        refuse(
            [
                *self._training_problems(),
                *self._scale_problems(),
                *self._objective_problems(),
                *self._value_problems(),
                *self._place_problems(),
                *self._retention_problems(),
            ]
        )

    @property
    def known_trainer(self) -> type:
        """The class that trains.

        Raises
        ------
        ConfigurationError
            If the study has none.
        """
        if self.trainer is None:
            raise ConfigurationError(
                f"study {self.name!r} must have a trainer for this, got None; without one it "
                "is used with ask and tell"
            )
        return self.trainer

    @property
    def known_direction(self) -> str | list[str] | None:
        """The direction as given, or as the names of the metrics say; None in doubt."""
        if self.direction is not None:
            return _direction_json(self.direction)
        if isinstance(self.metric, str):
            towards = Direction.of_metric(self.metric)
            return None if towards is None else towards.value
        each = [Direction.of_metric(name) for name in self.metric]
        return None if None in each else [towards.value for towards in each if towards is not None]

    @property
    def store_url(self) -> str:
        """Folder or URL of the checkpoint store."""
        return from_folder(self.folder, self._given_storage)

    @property
    def database_url(self) -> str:
        """Path or URL of the database."""
        given = self._given_database
        return (
            default_database(self.store_url) if given is None else from_folder(self.folder, given)
        )

    @property
    def _given_storage(self) -> str:
        return f"runs/{slug(self.name)}" if self.storage is None else str(self.storage)

    @property
    def _given_database(self) -> str | None:
        """The database as it was given; None if it is in the folder of the store."""
        if self.database is not None:
            return str(self.database)
        default = default_database(self._given_storage)
        return None if is_local(self._given_storage) else default

    @property
    def merges(self) -> bool:
        """Whether trials share steps: a study without a trainer has none to share."""
        return self.merge and self.trainer is not None

    @property
    def retention(self) -> Retention | None:
        """The budget of the store and the states that it must keep, if there is a budget."""
        if self.budget is None:
            return None
        return Retention(budget=bytes_of(self.budget), keep=Keep.parse(self.keep))

    @property
    def options(self) -> DispatchOptions:
        """How the dispatcher plans stages and saves."""
        return DispatchOptions(
            needs=NO_NEEDS if callable(self.needs) else Needs.of(self.needs),
            saves=SavePolicy(every=self.checkpoint_every),
            merge=self.merges,
            lookahead_seconds=LOOKAHEAD_SECONDS,
            load_seconds=LOAD_SECONDS,
        )

    def needs_of(self) -> Callable[[Mapping[str, Value]], Needs] | None:
        """Return the function that gives a configuration's needs; None if all have the same."""
        return partial(needs_from, self.needs) if callable(self.needs) else None

    def devices_of(self) -> Callable[[Needs | None], int] | None:
        """Return the function that gives the devices of a trial from its own needs, if any.

        None if each trial is trained on one device, since the trainer does not divide itself.
        """
        if not divides(self.trainer):
            return None
        needs = self.options.needs
        return lambda own: (needs if own is None else own).devices()

    def fingerprint(self) -> Fingerprint | None:
        """Return the fingerprint of the trainer, if there is one; this reads code and data."""
        if self.trainer is None:
            return None
        return self.take(self.trainer, tuple(self.depends_on)).fingerprint

    def take(
        self,
        trainer: type,
        depends_on: tuple[object, ...],
        *,
        read_files: Mapping[str, str] | None = None,
    ) -> TakenFingerprint:
        """Return the fingerprint of a trainer with this configuration: the study's, or that of now.

        `read_files` are those that are known if None.
        """
        try:
            return taken(
                trainer,
                self._fingerprinted,
                depends_on=depends_on,
                with_packages=self.reuse == "exact",
                read_files=self.read_files if read_files is None else read_files,
            )
        except RecursionError:
            raise ConfigurationError(
                "the trainer's code and depends_on must rest on values that are not nested too "
                f"deep and do not hold themselves, got depends_on={shown(self.depends_on)}"
            ) from None

    def holds(self, known: TakenFingerprint, trainer: type) -> bool:
        """Return whether a fingerprint of a trainer with this configuration holds still."""
        return known.holds(trainer, self._fingerprinted, self.read_files)

    @property
    def _fingerprinted(self) -> dict[str, object]:
        """The trainer's config as the fingerprint has it."""
        config = dict(self.config or {})
        if self.reuse == "exact":
            config["__environment__"] = environment("any")
        return config

    def recall_files(self, verdicts: Verdicts) -> bool:
        """Look for files that checks of this trainer have seen it read; return whether any is new.

        `spec` is another one then if one of them was changed since.

        Raises
        ------
        StorageError
            If the verdicts cannot be read.
        """
        if self.trainer is None or self.taken is None:
            return False
        take = partial(self.take, self.trainer, tuple(self.depends_on))
        _, files = with_known_files(verdicts, self.taken, self.read_files, take)
        is_new = len(files) > len(self.read_files)
        object.__setattr__(self, "read_files", files)
        return is_new

    def spec(self) -> dict[str, Any]:
        """Return the description of the study for its row in the database, without its store."""
        covered = None
        if self.trainer is not None:
            # The study that is opened with this compares its code with it, whenever it is used.
            object.__setattr__(self, "taken", self.take(self.trainer, tuple(self.depends_on)))
            covered = None if self.taken is None else self.taken.fingerprint
        return {
            "fingerprint": "none" if covered is None else covered.digest,
            "fingerprint_rule": RULE,
            "parts": {} if covered is None else dict(covered.parts),
            "gaps": {} if covered is None else dict(covered.gaps),
            "metric": self.metric,
            "direction": self.known_direction,
            "seed": self.seed,
            "merge": self.merges,
            # Versions of packages are of no use if the next GPU rounds otherwise.
            PORTABLE: False if self.reuse == "exact" else self.portable,
            "trainer": "none" if self.trainer is None else self.trainer.__qualname__,
        }

    def _training_problems(self) -> list[str]:
        problems = [] if self.trainer is None else list(problems_of(self.trainer))
        if whole_of(self.report_every) is None:
            problems.append(f"report_every must be an int >= 1, got {shown(self.report_every)}")
        every = self.checkpoint_every
        if every is not None and whole_of(every) is None:
            problems.append(f"checkpoint_every must be an int >= 1, got {shown(every)}")
        if whole_of(self.seed, least=None, most=None) is None:
            problems.append(f"seed must be an int, got {self.seed!r}")
        if self.reuse not in ("code", "exact"):
            problems.append(unknown("reuse", self.reuse, ("code", "exact")))
        if self.portable is not None and type(self.portable) is not bool:
            problems.append(f"portable must be True, False or None, got {shown(self.portable)}")
        elif self.portable and self.reuse == "exact":
            problems.append("portable must be False or None with reuse='exact', got True")
        return problems

    def _objective_problems(self) -> Iterator[str]:
        problems = list(_objective_problems(self.metric, self.direction))
        if self.trainer is not None and not problems_of(self.trainer):
            known = metric_names(self.trainer)
            given = self.metric if isinstance(self.metric, list) else [self.metric]
            names = [name for name in given if isinstance(name, str) and name]
            problems += [
                unknown("metric", each, known) for each in names if known and each not in known
            ]
            problems += metric_problems_of(self.trainer, names)
        yield from problems
        # A study that exists has a direction.
        if not problems and not self.load_if_exists and self.known_direction is None:
            yield direction_needed(self.metric)

    def _scale_problems(self) -> Iterator[str]:
        """Yield the reasons why no trial can have more devices than it needs."""
        if self.scale is None:
            return
        if not isinstance(self.scale, Scale):
            yield f"scale must be dasktune.Scale, got {shown(self.scale)}"
        elif self.trainer is None:
            yield "scale must be None without a trainer, which dasktune does not train"
        elif (problem := division_problem(self.trainer)) is not None:
            yield problem
        elif not callable(self.needs) and not needs_problems(self.needs):
            needs = Needs.of(self.needs)
            if not needs.device_problems() and needs.devices() > 1:
                yield one_device_text(needs.devices())

    def _value_problems(self) -> Iterator[str]:
        if isinstance(self.name, str):
            yield from name_problems("name", self.name)
        else:
            yield f"name must be a string that is not empty, got {self.name!r}"
        if not isinstance(self.merge, bool):
            yield f"merge must be True or False, got {self.merge!r}"
        yield from audit_problems(self.audit)
        yield from weight_problems(self.weight)
        if self.if_changed not in ("refuse", "new"):
            yield unknown("if_changed", self.if_changed, ("refuse", "new"))
        if self.on_nan not in ("rank", "fail"):
            yield f"on_nan must be 'rank' or 'fail', got {self.on_nan!r}"
        try:
            if self.config is not None:
                object.__setattr__(self, "config", plain_config(self.trainer, self.config))
        except ConfigurationError as error:
            yield from error.problems
        if not callable(self.needs):
            problems = needs_problems(self.needs)
            yield from problems
            if divides(self.trainer) and not problems:
                yield from Needs.of(self.needs).device_problems()

    def _place_problems(self) -> Iterator[str]:
        if not isinstance(self.storage, str | os.PathLike | None) or self.storage == "":
            yield f"storage must be a folder or a URL, got {self.storage!r}"
        elif str(self.storage).startswith(("sqlite:", "postgresql", "mysql", "journal:")):
            yield (
                "storage is the folder or URL of checkpoints; write "
                f"database={redacted(str(self.storage))!r} and storage='runs/...'"
            )
        if not isinstance(self.database, str | os.PathLike | None) or self.database == "":
            yield f"database must be a file or a URL, got {self.database!r}"

        yield from self._logger_problems()

    def _logger_problems(self) -> Iterator[str]:
        loggers = self.loggers if isinstance(self.loggers, tuple) else (self.loggers,)
        for position, logger in enumerate(loggers):
            if not isinstance(self.loggers, tuple) or not isinstance(logger, Logger):
                yield (
                    "loggers must be a list of loggers such as "
                    f"dasktune.integrations.tensorboard.TensorBoard, got {shown(logger)}"
                )
            elif logger in loggers[:position]:
                yield f"loggers must be different, got {shown(logger)} twice"

    def _retention_problems(self) -> Iterator[str]:
        yield from retention_problems(self.budget, self.keep)
        if self.trainer is None and self.budget is not None:
            yield f"budget must be None without a trainer, which saves nothing, got {self.budget!r}"


def default_database(store: str) -> str:
    """Return the database that a checkpoint store, a folder or URL, has by default."""
    if store.startswith("memory://"):
        return "sqlite://"
    if not is_local(store):
        return "dasktune.db"
    return str(Path(store.removeprefix("file://")) / "dasktune.db")


def is_local(store: str) -> bool:
    """Whether a store is a folder."""
    return "://" not in store or store.startswith("file://")


def direction_needed(metric: str | Iterable[str]) -> str:
    """Return the sentence that asks for the direction of a metric, or of several."""
    if isinstance(metric, str):
        wanted = f"direction must be 'maximize' or 'minimize' for the metric {metric!r}"
    else:
        wanted = f"direction must be a list with one for each metric of {list(metric)}"
    return f"{wanted}, got none: it is known by itself only for a loss or an error"


def _direction_json(direction: str | Direction | Iterable[str | Direction]) -> str | list[str]:
    if isinstance(direction, str | Direction):
        return Direction.parse(direction).value
    return [Direction.parse(each).value for each in direction]


def _objective_problems(metric: object, direction: object) -> Iterator[str]:
    names = metric if isinstance(metric, list) else [metric]
    directions = direction if isinstance(direction, list) else [direction]
    for name in names:
        if not isinstance(name, str) or not name:
            yield f"metric must be the name of a metric, got {name!r}"
        else:
            yield from name_problems("metric", name)
    if isinstance(metric, list) and len(set(map(str, names))) < max(len(names), 1):
        yield f"metrics must be different names, at least one, got {metric!r}"
    if direction is None:
        return
    known = (*Direction, *(each.value for each in Direction))
    for each in directions:
        if each not in known:
            yield f"direction must be 'maximize' or 'minimize', got {each!r}"
    if len(names) != len(directions) or isinstance(metric, list) != isinstance(direction, list):
        yield (
            "there must be one direction for each metric, got "
            f"metric={metric!r}, direction={direction!r}"
        )


def _as_list(given: object) -> Any:
    """Return the items of an iterable as a list; anything else as it is, for the checks."""
    return list(given) if isinstance(given, Iterable) else given
