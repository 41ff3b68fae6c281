"""The study that is checked: an open one, or the one that a study file would open.

`open_there`, `class_there` and `parts_there` travel by value to workers that have the same version
of dasktune.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from dasktune.algos.base import Tuner
from dasktune.doctor.facts import TrainerFacts
from dasktune.doctor.needs import TriedNeeds, try_needs
from dasktune.errors import ConfigurationError, StorageError
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.database.database import Database
from dasktune.storage.database.schema import VerdictRow
from dasktune.storage.verdicts import Verdicts
from dasktune.study.create import config_of, open_in, opening_with
from dasktune.study.study import Study
from dasktune.trainer.check_resume.verdict import binding_here, device_of
from dasktune.trainer.fingerprint.data import json_digest
from dasktune.trainer.fingerprint.fingerprint import fingerprint
from dasktune.trainer.fingerprint.installed import is_installed_name
from dasktune.trainer.parsing import parsed
from dasktune.worker.hardware import describe_worker
from dasktune.worker.job import JobPlan, open_job
from dasktune.worker.sharing import describe_sharing


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedStudy:
    """A study to check.

    Parameters
    ----------
    name
        The study's name.
    trainer
        The trainer class.
    plan
        The plan that workers would get, with the URL of the store.
    fingerprint
        The trainer's fingerprint.
    database
        The open database, or the URL where it would be.
    tried
        The needs that the study's function gives its configurations; None without a function.
    """

    name: str
    trainer: type
    plan: JobPlan
    fingerprint: str
    database: Database | str
    tried: TriedNeeds | None = None

    @classmethod
    def of(cls, study: Study, tuner: Tuner | None = None) -> CheckedStudy:
        """Return an open study as a study to check, with the tuner that it will run."""
        row = study.database.study(study.name)
        return cls(
            name=study.name,
            trainer=study.trainer,
            plan=study.plan_of_run("doctor"),
            fingerprint="" if row is None else str(row.spec["fingerprint"]),
            database=study.database,
            tried=try_needs(study.study_config.needs, tuner),
        )

    def facts(self) -> TrainerFacts:
        """Return the facts on the trainer that the driver knows."""
        threads = getattr(self.trainer, "threads", None)
        return TrainerFacts(
            name=self.trainer.__qualname__,
            needs=self.plan.needs,
            tried=self.tried,
            threads=threads if isinstance(threads, int) else None,
            checked=self._checked(),
        )

    def packages(self) -> list[str]:
        """Return the distributions that the trainer's module imports."""
        module = sys.modules.get(self.trainer.__module__)
        names = {
            name for each in _travelling(module, set()) for name in _imported(each) if name
        } - set(sys.stdlib_module_names)
        homes = metadata.packages_distributions()
        return sorted({homes[name][0] for name in names if name in homes} - {"dasktune"})

    def _checked(self) -> bool | None:
        """Return the outcome of the last `check_resume` of this trainer, if any."""
        known: list[VerdictRow] = []
        for verdicts_there in (self._recorded, self._stored):
            # The checks of the database and of the store say why it cannot be read.
            with suppress(StorageError, ConfigurationError):
                known += verdicts_there()
        binding = binding_here(known, device_of(self.plan.needs))
        return None if binding is None else binding.ok

    def _recorded(self) -> list[VerdictRow]:
        with _opened(self.database) as database:
            return Verdicts(database, None).of(self.fingerprint)

    def _stored(self) -> list[VerdictRow]:
        return Verdicts(None, CheckpointStore(self.plan.store).files).of(self.fingerprint)


@contextmanager
def study_of(
    make: Callable[[], Study], make_tuner: Callable[[], Tuner] | None = None
) -> Iterator[CheckedStudy]:
    """Yield the study that `make` would create or open, without creating it there.

    Parameters
    ----------
    make
        Calls `create_study`.
    make_tuner
        Returns the tuner; called if the needs of its configurations come from a function.

    Raises
    ------
    ConfigurationError
        If the study cannot be created, or has no trainer.
    """
    config = config_of(make)
    if config is None:
        raise ConfigurationError("the study must be made by create_study")
    with (
        tempfile.TemporaryDirectory(prefix="dasktune-") as scratch,
        opening_with(open_in(Path(scratch))),
    ):
        study = make()
        try:
            has_function = callable(config.needs)
            tuner = make_tuner() if make_tuner is not None and has_function else None
            checked = CheckedStudy.of(study, tuner)
        finally:
            study.close()
        store = config.store_url
        if "://" not in store:
            store = str(Path(store).expanduser().absolute())
        yield replace(
            checked, plan=replace(checked.plan, store=store), database=config.database_url
        )


@contextmanager
def _opened(database: Database | str) -> Iterator[Database]:
    if isinstance(database, Database):
        yield database
        return
    opened = Database(database, create=False)
    try:
        yield opened
    finally:
        opened.close()


def _travelling(module: ModuleType | None, known: set[str]) -> Iterator[ModuleType]:
    """Yield a module and its imported modules that are not installed: they travel with it."""
    if module is None or module.__name__ in known:
        return
    known.add(module.__name__)
    yield module
    for name in _imported(module):
        if name in sys.modules and not is_installed_name(name):
            yield from _travelling(sys.modules[name], known)


def _imported(module: ModuleType) -> set[str]:
    """Return the top-level modules that a module imports, also inside functions."""
    try:
        source = inspect.getsource(module)
    except (OSError, TypeError):
        homes = (getattr(value, "__module__", None) or "" for value in vars(module).values())
        return {name.partition(".")[0] for name in homes}
    names = set()
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


# ------------------------------------------------------------------ its trainer on workers


async def open_there(plan: JobPlan, dask_worker: Any = None) -> str:
    """Return why a worker cannot open the trainer; empty if it can."""
    try:
        await asyncio.to_thread(open_job, plan, dask_worker.state.total_resources)
    except Exception as error:  # noqa: BLE001 - a module of the user's may run here
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return ""


async def class_there(dask_worker: Any = None) -> dict[str, object]:
    """Return the compute class and the tags of a worker, and the device that it shares."""
    resources = dict(dask_worker.state.total_resources)
    known = await asyncio.to_thread(describe_worker, resources)
    return {**known, **await asyncio.to_thread(describe_sharing, resources)}


async def parts_there(plan: JobPlan, dask_worker: Any = None) -> dict[str, str]:
    """Return `parts_of` on a worker."""

    def find() -> dict[str, str]:
        trainer = open_job(plan, dask_worker.state.total_resources).trainer_class
        return dict(parts_of(plan, trainer))

    return await asyncio.to_thread(find)


def parts_of(plan: JobPlan, trainer: type) -> Mapping[str, str]:
    """Return the parts of a fingerprint that may differ between two hosts.

    For code that travels by value only the data may differ: the driver sends the rest.
    """
    if plan.code.kind == "import":
        return fingerprint(trainer, plan.config).parts
    describe = getattr(trainer, "fingerprint_data", None)
    return {} if describe is None else {"data": json_digest(describe(plan.config))}
