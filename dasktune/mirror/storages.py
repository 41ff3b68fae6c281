"""Writes the snapshot of a study into an Optuna storage, in place of the one before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import optuna
import sqlalchemy as sa
from optuna.exceptions import OptunaError
from optuna.storages import BaseStorage, RDBStorage

from dasktune._engine.timeouts import SQLITE_SECONDS
from dasktune.errors import ConfigurationError, StorageError
from dasktune.mirror.frozen import NUMBER
from dasktune.mirror.snapshot import metrics_named, unlogged
from dasktune.storage.redaction import redacted, showable

OWNER: Final = "dasktune:study"
"""User attribute of the Optuna study: the owner of which it is a snapshot."""


def write_snapshot(snapshot: optuna.Study, storage: str | Path | BaseStorage, owner: str) -> None:
    """Write a snapshot into an Optuna storage; an earlier one of the same study is removed.

    Optuna forbids changes of trials that have ended, and a trial may go on: that is why the study
    is written anew as a whole.

    Parameters
    ----------
    snapshot
        As `dasktune.mirror.optuna_study` returns it.
    storage
        An Optuna storage, the URL of a database, or the path of a SQLite file, which is created
        if it is missing.
    owner
        An identifier that differs between studies of the same name.

    Raises
    ------
    ConfigurationError
        If the storage has a study of this name that is no snapshot of the owner's study.
    StorageError
        If the storage cannot be opened or written.
    """
    name = snapshot.study_name
    with _opened(storage, name) as opened, unlogged(name):
        _remove(opened, name, owner)
        study = optuna.create_study(storage=opened, study_name=name, directions=snapshot.directions)
        study.set_user_attr(OWNER, owner)
        metrics_named(study, snapshot.metric_names or [])
        study.add_trials(snapshot.get_trials(deepcopy=False))


def _remove(storage: BaseStorage, name: str, owner: str) -> None:
    """Remove the snapshot of this name, if there is one; refuse to remove anything else."""
    try:
        study = optuna.load_study(study_name=name, storage=storage)
    except KeyError:
        return
    other = study.user_attrs.get(OWNER) != owner
    added = [
        trial.number
        for trial in study.get_trials(deepcopy=False)
        if trial.system_attrs.get(NUMBER) != trial.number
    ]
    if other or added:
        reason = "it is no snapshot of this study" if other else f"trial {added[0]} was added to it"
        raise ConfigurationError(
            f"study {name!r} of Optuna's storage must be a snapshot of this study to be replaced, "
            f"but {reason}: write to another storage, or delete it with optuna.delete_study"
        )
    storage.delete_study(study._study_id)  # by its number: the name may be another study's by now


@contextmanager
def _opened(storage: str | Path | BaseStorage, name: str) -> Iterator[BaseStorage]:
    """Open a storage; its errors are a `StorageError` without any password."""
    own: RDBStorage | None = None
    try:
        if not isinstance(storage, BaseStorage):
            storage = own = _database(str(storage))
        yield storage
    except (OptunaError, sa.exc.SQLAlchemyError, OSError, ImportError, RuntimeError) as error:
        reason = redacted(str(error))
        raise StorageError(f"cannot write study {name!r} to Optuna: {reason}") from showable(error)
    finally:
        if own is not None:
            own.remove_session()
            own.engine.dispose()


def _database(url: str) -> RDBStorage:
    """Return an Optuna storage in a database."""
    if "://" not in url:
        url = f"sqlite:///{Path(url).expanduser().absolute()}"
    try:
        address = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        # The reason may quote a part of the URL that contains the password.
        raise ConfigurationError(
            "the URL of an Optuna storage cannot be read; it must be like "
            "postgresql+psycopg://user:password@host:5432/name or sqlite:///path"
        ) from None
    if address.get_backend_name() != "sqlite":
        return RDBStorage(url, engine_kwargs={"pool_pre_ping": True})
    if address.database in (None, "", ":memory:"):
        raise ConfigurationError(
            f"an Optuna storage must be a file or a database server, got {url!r}"
        )
    Path(str(address.database)).parent.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"connect_args": {"timeout": SQLITE_SECONDS}}
    return RDBStorage(url, engine_kwargs=options)
