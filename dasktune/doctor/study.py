"""The study that is checked: an open one, or the one that a study file would open.

Workers that have the same version of dasktune call `examine_there`.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from dasktune._study.create import config_of, open_in, opening_with
from dasktune._study.study import Study
from dasktune._worker.hardware import describe_worker
from dasktune._worker.job import JobPlan, open_job
from dasktune._worker.shared_device import describe_sharing
from dasktune.doctor.facts import TrainerFacts
from dasktune.errors import ConfigurationError, StorageError
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.database.database import Database
from dasktune.storage.database.rows import VerdictRow
from dasktune.storage.verdicts import Verdicts
from dasktune.trainer.check_resume.verdict import binding_here, device_of
from dasktune.trainer.fingerprint.data import json_digest
from dasktune.trainer.fingerprint.fingerprint import fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedStudy:
    """A study to check."""

    name: str
    trainer: type
    #: The plan that workers would get, with the URL of the store.
    plan: JobPlan
    #: The trainer's fingerprint.
    fingerprint: str
    #: The open database, or the URL where it would be.
    database: Database | str

    @classmethod
    def of(cls, study: Study) -> CheckedStudy:
        """Return an open study as a study to check."""
        row = study.database.study(study.name)
        return cls(
            name=study.name,
            trainer=study.trainer,
            plan=study.plan_of_run("doctor"),
            fingerprint="" if row is None else str(row.spec["fingerprint"]),
            database=study.database,
        )

    def facts(self) -> TrainerFacts:
        """Return the facts on the trainer that the driver knows."""
        threads = getattr(self.trainer, "threads", None)
        return TrainerFacts(
            name=self.trainer.__qualname__,
            needs=self.plan.needs,
            threads=threads if isinstance(threads, int) else None,
            checked=self._checked(),
        )

    def packages(self) -> list[str]:
        """Return the distributions to which the trainer's code refers."""
        homes = metadata.packages_distributions()
        known = fingerprint(self.trainer, self.plan.config).packages
        return sorted({homes[name][0] for name in known if name in homes} - {"dasktune"})

    def _checked(self) -> bool | None:
        """Return the outcome of the last `check_resume` of this trainer, if any."""
        known: list[VerdictRow] = []
        # The checks of the database and of the store say why it cannot be read.
        with suppress(StorageError, ConfigurationError), _opened(self.database) as database:
            known += Verdicts(database, None).of(self.fingerprint)
        with suppress(StorageError, ConfigurationError):
            files = CheckpointStore(self.plan.store).files
            known += Verdicts(None, files).of(self.fingerprint)
        binding = binding_here(known, device_of(self.plan.needs))
        return None if binding is None else binding.ok


@contextmanager
def study_of(make: Callable[[], Study]) -> Iterator[CheckedStudy]:
    """Yield the study that `make` would create or open, without creating it there."""
    config = config_of(make)
    if config is None:
        raise ConfigurationError("the study must be made by create_study")
    with (
        tempfile.TemporaryDirectory(prefix="dasktune-") as scratch,
        opening_with(open_in(Path(scratch))),
    ):
        with closing(make()) as study:
            checked = CheckedStudy.of(study)
        store = config.store_url
        if "://" not in store:
            store = str(Path(store).expanduser().absolute())
        yield replace(
            checked, plan=replace(checked.plan, store=store), database=config.database_url
        )


def _opened(database: Database | str) -> AbstractContextManager[Database]:
    if isinstance(database, Database):
        return nullcontext(database)
    return closing(Database(database, create=False))


# ------------------------------------------------------------------ its trainer on workers


async def examine_there(plan: JobPlan, dask_worker: Any = None) -> dict[str, Any]:
    """Return the fields of a `dasktune.doctor.facts.WorkerFacts`, and the parts of its fingerprint.

    A worker that cannot open the trainer has no parts.
    """
    resources = dict(dask_worker.state.total_resources)

    def examine() -> dict[str, Any]:
        known: dict[str, Any] = {**describe_worker(resources), **describe_sharing(resources)}
        fields: dict[str, Any] = {"kind": known["class"], "tags": tuple(known["tags"])}
        fields |= {"device": known["device"], "has_mps": known["mps"]}
        try:
            trainer = open_job(plan, resources).trainer_class
        except Exception as error:  # noqa: BLE001 - a module of the user's may run here
            return {**fields, "opened": f"{type(error).__name__}: {' '.join(str(error).split())}"}
        return {**fields, "opened": "", "parts": dict(parts_of(plan, trainer))}

    return await asyncio.to_thread(examine)


def parts_of(plan: JobPlan, trainer: type) -> Mapping[str, str]:
    """Return the parts of a fingerprint that may differ between two hosts.

    For code that travels by value only the data may differ: the driver sends the rest.
    """
    if plan.code.kind == "import":
        return fingerprint(trainer, plan.config).parts
    describe = getattr(trainer, "fingerprint_data", None)
    return {} if describe is None else {"data": json_digest(describe(plan.config))}
