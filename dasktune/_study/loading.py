"""Results of a study that exists, opened by its name, without its trainer."""

from __future__ import annotations

import os

from dasktune._results.results import StudyResults
from dasktune._study.config import default_database
from dasktune._study.folder import from_folder, study_folder
from dasktune._study.from_optuna import OF_LOADING, explained
from dasktune._study.memory import StudyMemory
from dasktune.errors import ConfigurationError, shown, unknown
from dasktune.graph.attempts import DispatchOptions
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.database.database import Database


@explained(OF_LOADING, 'load_study("digits", storage="runs/digits")')
def load_study(
    name: str, *, storage: str | os.PathLike[str], database: str | None = None
) -> StudyResults:
    """Return the results of a study that exists: its trials, figures and predictions.

    They only read, so the trainer can be absent. To go on with the study, call
    `dasktune.create_study` with its trainer and ``load_if_exists=True``.

    Parameters
    ----------
    name
        The study.
    storage, database
        As for `dasktune.create_study`.

    Raises
    ------
    ConfigurationError
        If there is no such study.
    StorageError
        If there is no such database, or it cannot be read.

    Examples
    --------
    >>> import dasktune as dt, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> study = dt.create_study(None, name="digits", metric="loss", storage=folder)
    >>> study.add_trial({"lr": 0.1}, 0.5)
    0
    >>> study.close()
    >>> dt.load_study("digits", storage=folder).best_params
    {'lr': 0.1}
    """
    if not isinstance(storage, str | os.PathLike):
        raise ConfigurationError(f"storage must be a path or a URL, got {shown(storage)}")
    place = from_folder(study_folder(), str(storage))
    url = default_database(place)
    if database is not None:
        url = from_folder(study_folder(), str(database))
    if url is None:
        raise ConfigurationError(f"database must be given for a store such as {place}, got None")
    opened = Database(url, create=False)
    try:
        row = opened.study(name)
        if row is None:
            known = [each.name for each in opened.studies()]
            raise ConfigurationError(unknown("study", name, known))
        options = DispatchOptions(merge=bool(row.spec.get("merge")))
        return StudyResults(StudyMemory(row, opened, CheckpointStore(place), options))
    except BaseException:
        opened.close()
        raise
