"""What is examined: a study that is open, or the one that a study file would open."""

from __future__ import annotations

import ast
import inspect
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from types import ModuleType

from dasktune.doctor.facts import TrainerFacts
from dasktune.driver.history import History
from dasktune.errors import ConfigurationError, StorageError
from dasktune.storage.database.database import Database
from dasktune.study.create import config_of, open_in, opening_with
from dasktune.study.study import Study
from dasktune.trainer.fingerprint.installed import is_installed_name
from dasktune.worker.job import JobPlan

_PARSING = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A study as it is examined.

    Parameters
    ----------
    name
        Of the study.
    trainer
        Its class.
    plan
        What workers would be told, among others where the store is.
    fingerprint
        Of the trainer.
    database
        Open, or where it would be.
    """

    name: str
    trainer: type
    plan: JobPlan
    fingerprint: str
    database: Database | str

    @classmethod
    def of(cls, study: Study) -> Subject:
        """Return a study that is open."""
        row = study.database.study(study.name)
        return cls(
            name=study.name,
            trainer=study.trainer,
            plan=study.plan_of_run("doctor"),
            fingerprint="" if row is None else str(row.spec["fingerprint"]),
            database=study.database,
        )

    def facts(self) -> TrainerFacts:
        """Return what is known of the trainer here."""
        threads = getattr(self.trainer, "threads", None)
        return TrainerFacts(
            name=self.trainer.__qualname__,
            needs=self.plan.needs,
            threads=threads if isinstance(threads, int) else None,
            checked=self._checked(),
        )

    def packages(self) -> list[str]:
        """Return the distributions that the trainer's module imports."""
        module = sys.modules.get(self.trainer.__module__)
        names = {
            name for one in _travelling(module, set()) for name in _imported(one) if name
        } - set(sys.stdlib_module_names)
        homes = metadata.packages_distributions()
        return sorted({homes[name][0] for name in names if name in homes} - {"dasktune"})

    def _checked(self) -> bool | None:
        """Return what the last `check_resume` of this trainer found; None if there was none."""
        try:
            with _opened(self.database) as database:
                row = database.study(self.name)
                notes = [] if row is None else History(database, row.id).notes("check")
        except (StorageError, ConfigurationError):
            return None  # the check of the database says why
        mine = [one["ok"] for one in notes if one["fingerprint"] == self.fingerprint]
        return bool(mine[-1]) if mine else None


@contextmanager
def subject_of(make: Callable[[], Study]) -> Iterator[Subject]:
    """Give the study that `make` would create or open; nothing is made where it would be.

    Raises
    ------
    ConfigurationError
        If it cannot be created as it is asked for, or has no trainer.
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
            found = Subject.of(study)
        finally:
            study.close()
        store = config.store_url
        if "://" not in store:
            store = str(Path(store).expanduser().absolute())
        yield replace(found, plan=replace(found.plan, store=store), database=config.database_url)


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
    """Yield a module and those it imports that travel with it, since they are not installed."""
    if module is None or module.__name__ in known:
        return
    known.add(module.__name__)
    yield module
    for name in _imported(module):
        if name in sys.modules and not is_installed_name(name):
            yield from _travelling(sys.modules[name], known)


def _imported(module: ModuleType) -> set[str]:
    """Return the top-level names that a module imports, also where its functions run."""
    try:
        source = inspect.getsource(module)
    except (OSError, TypeError):
        found = (getattr(one, "__module__", None) or "" for one in vars(module).values())
        return {name.partition(".")[0] for name in found}
    with _PARSING:  # Python counts the depth of a tree for all threads together in 3.11
        tree = ast.parse(source)
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {one.name.partition(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names
