"""The files that the check of a trainer saw it read, looked at again on a worker.

A run may last for days. A file that is edited meanwhile would decide the trials that begin later,
under a fingerprint whose states were made with the old content.
"""

from __future__ import annotations

from dasktune._words import listed
from dasktune._worker.job import Job
from dasktune.errors import StorageError
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.verdicts import Verdicts, files_of
from dasktune.trainer.fingerprint.read_files import MISSING, changed_files


class KnownFiles:
    """Compares files with their contents in the verdict on a trainer.

    For a job without a fingerprint there is nothing to compare.
    """

    def __init__(self, job: Job, store: CheckpointStore) -> None:
        self._job, self._store = job, store
        self._known: dict[str, str] = {}
        self._looked = 0

    def refuse_changed(self, files_known: int = 1) -> None:
        """Raise a `StorageError` if a file has another content than in the check.

        It ends the run and fails no trial: once the file is back, the run may go on. A file that
        this machine lacks is left out: if a trainer needs it, the trainer says so itself.

        For `files_known` see `StageSpec`.
        """
        if self._job.fingerprint and self._looked < files_known:
            self._looked = files_known
            self._known = files_of(Verdicts(None, self._store.files).of(self._job.fingerprint))
        changed = changed_files(self._known, self._job.code_folder)
        if names := [path for path, content in changed if content != MISSING]:
            raise StorageError(
                f"the training code reads {listed(names)}, which must be as when the trainer was "
                "checked: changed meanwhile, or another one on this worker. Put it back, or run "
                "create_study again, with if_changed='new' or another name"
            )
