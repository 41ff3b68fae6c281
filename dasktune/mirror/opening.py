"""Opens the Optuna study of a mirror, and refuses studies that are no mirror of ours."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import optuna
import sqlalchemy as sa
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning, OptunaError
from optuna.storages import BaseStorage, RDBStorage
from optuna.study import StudyDirection

from dasktune.engine.timeouts import SQLITE_SECONDS
from dasktune.errors import ConfigurationError, StorageError, refuse
from dasktune.mirror.tables import TableWriter, contents_by_tables, understands
from dasktune.mirror.writers import CallWriter, Contents, Writer, contents_by_calls
from dasktune.storage.redaction import redacted, showable
from dasktune.types import Objective

OWNER: Final = "dasktune:study"
"""User attribute of the Optuna study: the owner whose study it mirrors."""


class OpenMirror:
    """An open Optuna study with its writer.

    Parameters
    ----------
    storage
        An Optuna storage, the URL of a database, or the path of a SQLite file.
    name
        The Optuna study's name; the study is created if it is missing.
    objective
        The objective that it must have.
    owner
        Identifier of our study.

    Raises
    ------
    ConfigurationError
        If the Optuna study is no mirror of ours.
    StorageError
        If the storage cannot be opened.

    Attributes
    ----------
    writer
        Writes its trials.
    distributions
        Its distributions by name of the parameter.
    """

    def __init__(
        self, storage: str | Path | BaseStorage, name: str, objective: Objective, owner: str
    ) -> None:
        self._own: RDBStorage | None = None
        try:
            if not isinstance(storage, BaseStorage):
                storage = self._own = _database(str(storage))
            self.writer, self.distributions = _opened(storage, name, objective, owner)
        except ConfigurationError:
            self.close()
            raise
        except (OptunaError, sa.exc.SQLAlchemyError, OSError, ImportError, RuntimeError) as error:
            self.close()
            reason = redacted(str(error))
            raise StorageError(f"cannot mirror study {name!r} to Optuna: {reason}") from showable(
                error
            )

    def close(self) -> None:
        """Close the storage if this object opened it."""
        if self._own is not None:
            self._own.remove_session()
            self._own.engine.dispose()


def metrics_named(study: optuna.Study, objective: Objective) -> None:
    """Give an Optuna study the names of its metrics."""
    if study.metric_names != list(objective.metrics):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            study.set_metric_names(list(objective.metrics))


def directions_of(objective: Objective) -> list[StudyDirection]:
    """Return the directions of an objective in Optuna's type."""
    return [StudyDirection[direction.name] for direction in objective.directions]


def _opened(
    storage: BaseStorage, name: str, objective: Objective, owner: str
) -> tuple[Writer, dict[str, BaseDistribution]]:
    """Return a writer for a study, and the distributions of its parameters."""
    study = _study(storage, name, objective)
    study_id = storage.get_study_id_from_name(name)
    writer: Writer
    if isinstance(storage, RDBStorage) and understands(storage):
        contents = contents_by_tables(storage, study_id)
        writer = TableWriter(storage, study_id, contents.written)
    else:
        contents = contents_by_calls(storage, study_id)
        writer = CallWriter(storage, study_id, contents.written)
    refuse(_problems(study, contents, objective, owner))
    metrics_named(study, objective)
    if OWNER not in study.user_attrs:
        study.set_user_attr(OWNER, owner)
    return writer, contents.distributions


def _study(storage: BaseStorage, name: str, objective: Objective) -> optuna.Study:
    """Return the Optuna study of this name; create it if it is missing."""
    try:
        return optuna.load_study(study_name=name, storage=storage)
    except KeyError:
        directions = directions_of(objective)
        return optuna.create_study(
            storage=storage, study_name=name, directions=directions, load_if_exists=True
        )


def _problems(
    study: optuna.Study, contents: Contents, objective: Objective, owner: str
) -> Iterator[str]:
    where = f"study {study.study_name!r} in Optuna's storage"
    wanted = directions_of(objective)
    if study.directions != wanted:
        texts = (
            ", ".join(direction.name.lower() for direction in directions)
            for directions in (wanted, study.directions)
        )
        yield "{} must have directions {}, got {}".format(where, *texts)
    if contents.foreign:
        yield (
            f"{where} must hold mirrored trials only, got trial {min(contents.foreign)}, which was "
            "not mirrored: use another name"
        )
    mirrored = study.user_attrs.get(OWNER, owner)
    if mirrored != owner:
        yield f"{where} must mirror {owner!r}, got the mirror of {mirrored!r}"


def _database(url: str) -> RDBStorage:
    """Return an Optuna storage in a database.

    Raises
    ------
    ConfigurationError
        If the URL cannot be read, or names a SQLite database in memory, which only this process
        could see.
    """
    if "://" not in url:
        url = f"sqlite:///{Path(url).expanduser().absolute()}"
    try:
        address = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        # The reason may quote a part of the URL that contains the password.
        raise ConfigurationError(
            "the URL of a mirror cannot be read; it must be like "
            "postgresql+psycopg://user:password@host:5432/name or sqlite:///path"
        ) from None
    if address.get_backend_name() != "sqlite":
        return RDBStorage(url, engine_kwargs={"pool_pre_ping": True})
    if address.database in (None, "", ":memory:"):
        raise ConfigurationError(f"a mirror must be a file or a database server, got {url!r}")
    Path(str(address.database)).parent.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"connect_args": {"timeout": SQLITE_SECONDS}}
    return RDBStorage(url, engine_kwargs=options)
