"""Creating and opening studies: everything about them is checked before anything runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from dasktune.errors import ConfigurationError, name_problems, refuse, unknown
from dasktune.graph.attempts import LOOKAHEAD_SECONDS, DispatchOptions
from dasktune.graph.keys import root_key
from dasktune.graph.save_policy import SavePolicy
from dasktune.results.keep import DEFAULT, note_keep
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.database.database import Database
from dasktune.storage.database.schema import StudyRow
from dasktune.storage.layout import slug
from dasktune.storage.retention import Keep, Retention, bytes_of, retention_problems
from dasktune.study.study import Study
from dasktune.trainer.base import problems_of
from dasktune.trainer.environment import environment
from dasktune.trainer.fingerprint.fingerprint import Fingerprint, differing, fingerprint
from dasktune.trainer.metrics import metric_names
from dasktune.types import Direction

_LOCATING: ContextVar[bool] = ContextVar("dasktune-locating", default=False)
_ELSEWHERE: ContextVar[Path | None] = ContextVar("dasktune-elsewhere", default=None)


class Located(NamedTuple):
    """Where a study would be, and what decides whether it finds states of others.

    Its database, its name there, its checkpoint store, the training seed, and a function that
    returns the fingerprint of its trainer (None without one), for which it reads code and data.
    """

    database: str
    name: str
    storage: str
    seed: int
    fingerprint: Callable[[], Fingerprint | None]


class _LocatedError(BaseException):
    """Where a study would be; no `Exception`, so that user code does not catch it."""

    def __init__(self, place: Located) -> None:
        super().__init__(place)
        self.place = place


def locate(make: Callable[[], object]) -> Located | None:
    """Return where the study is that `make` would create or open.

    `create_study` does nothing meanwhile; None if `make` does not call it.
    """
    token = _LOCATING.set(True)
    try:
        make()
    except _LocatedError as found:
        return found.place
    finally:
        _LOCATING.reset(token)
    return None


@contextmanager
def stored_in(folder: Path) -> Iterator[None]:
    """Let `create_study` keep all that it keeps in a folder, whatever it is told.

    There is no mirror then, and no budget.
    """
    token = _ELSEWHERE.set(folder)
    try:
        yield
    finally:
        _ELSEWHERE.reset(token)


def create_study(
    trainer: type | None,
    *,
    name: str,
    metric: str | Iterable[str],
    storage: str | os.PathLike[str] | None = None,
    database: str | None = None,
    direction: str | Direction | Iterable[str | Direction] = Direction.MINIMIZE,
    load_if_exists: bool = False,
    seed: int = 0,
    config: Mapping[str, object] | None = None,
    report_every: int = 1,
    checkpoint_every: int | None = None,
    merge: bool = True,
    needs: Mapping[str, float] | None = None,
    depends_on: Iterable[object] = (),
    reuse: str = "code",
    on_nan: str = "rank",
    mirror: Any = None,
    budget: str | int | None = None,
    keep: str = DEFAULT,
) -> Study:
    """Create a study, or open the one of that name.

    Parameters
    ----------
    trainer
        The class that trains (`dasktune.Trainer`). None for a loop of your own with
        `Study.ask` and `Study.tell`; such trials share nothing.
    name
        The study's name in its database.
    metric
        Name of the metric, among those that ``evaluate`` returns, to optimise; several are
        traded off, by samplers that can.
    storage
        Where checkpoints go: a folder or a URL of fsspec; if None, ``runs/<name>`` with a
        dash for what is neither letter nor digit.
    database
        A path or a URL of SQLAlchemy; ``dasktune.db`` in a local `storage`, if None.
    direction
        ``minimize`` or ``maximize``; one for each metric if there are several.
    load_if_exists
        Open the study if it exists. Otherwise one that exists is an error.
    seed
        Seed of all training; part of every state's key.
    config
        What every trainer gets as ``self.config``; JSON values.
    report_every
        Evaluate after every so many steps, and wherever a tuner asks for a report.
    checkpoint_every
        Also save every so many steps; None saves where it costs at most 2% of the time.
    merge
        Whether trials share the steps that they have in common. False is the control: its
        trials share nothing, neither with each other nor with any other study.
    needs
        Resources that a stage occupies on its worker, such as ``{"GPU": 1}``.
    depends_on
        Further functions, classes or modules whose code decides the result.
    reuse
        ``code`` finds states of the same code, config and data; ``exact`` also demands
        the same versions of Python, NumPy, torch (where it is installed) and dasktune.
    on_nan
        ``rank`` takes a metric that is NaN or infinite as worse than any other, ``fail``
        ends its trial as a failure.
    mirror
        An Optuna storage (an object, a database's URL, or the path of a SQLite file) that
        is kept up to date while the study runs: for optuna-dashboard. The database that
        counts stays `database`.
    budget
        Most bytes that all checkpoints of the store may take, such as ``"20 GB"``, also those
        of other studies; None is no limit. What is worth least goes first, and is trained
        again if it is asked for after all. Of several drivers each keeps below its own.
    keep
        Whose last states never go: ``best:3`` for those of the three best trials, ``all`` or
        ``none``.

    Raises
    ------
    ConfigurationError
        If anything of this cannot be, or a study of that name was made with another
        trainer, metric, direction or seed: all problems at once.
    StorageError
        If the store or the database cannot be written.
    """
    if (folder := _ELSEWHERE.get()) is not None:
        storage, database, mirror, budget = folder / "store", None, None, None
    metric = metric if isinstance(metric, str) else _listed(metric)
    direction = direction if isinstance(direction, str | Direction) else _listed(direction)
    url = f"runs/{slug(str(name))}" if storage is None else str(storage)
    address = default_database(url) if database is None else database
    if _LOCATING.get():
        covered_by = partial(_fingerprint, trainer, config or {}, depends_on, reuse)
        raise _LocatedError(Located(address, name, url, seed, covered_by))
    refuse(
        [
            *_problems(trainer, metric, report_every, seed, reuse),
            *_objective_problems(metric, direction),
            *_value_problems(name, merge, config, needs, on_nan),
            *_place_problems(storage, database),
            *_budget_problems(trainer, budget, keep),
        ]
    )
    alone = trainer is None or not merge
    covered = _fingerprint(trainer, config or {}, depends_on, reuse)
    spec = {
        "fingerprint": "none" if covered is None else covered.digest,
        "parts": {} if covered is None else dict(covered.parts),
        "metric": metric,
        "direction": _direction_json(direction),
        "seed": seed,
        "merge": not alone,
        "trainer": "none" if trainer is None else trainer.__qualname__,
    }
    saves = SavePolicy(every=checkpoint_every)
    store = CheckpointStore(url)
    spec |= {"store": store.check(), "storage": _whole(url)}
    opened = Database(address)
    kept = Keep.parse(keep)
    try:
        row = _open_row(opened, name, spec, load_if_exists)
    except ConfigurationError:
        opened.close()
        raise
    note_keep(opened, row.id, kept)
    return Study(
        trainer,
        row=row,
        database=opened,
        store=store,
        config=dict(config or {}),
        report_every=report_every,
        options=DispatchOptions(
            needs=dict(needs or {}),
            saves=saves,
            merge=not alone,
            lookahead_seconds=LOOKAHEAD_SECONDS,
        ),
        fails_on_nan=on_nan == "fail",
        mirror=mirror,
        retention=None if budget is None else Retention(budget=bytes_of(budget), keep=kept),
    )


def _problems(
    trainer: type | None, metric: object, report_every: int, seed: int, reuse: str
) -> list[str]:
    """Return what is wrong with the trainer and how it shall be run."""
    found = [] if trainer is None else list(problems_of(trainer))
    if type(report_every) is not int or report_every < 1:
        found.append(f"report_every must be an int >= 1, got {report_every!r}")
    if type(seed) is not int:
        found.append(f"seed must be an int, got {seed!r}")
    if reuse not in ("code", "exact"):
        found.append(unknown("reuse", reuse, ("code", "exact")))
    known = () if found or trainer is None else metric_names(trainer)
    names = metric if isinstance(metric, list) else [metric]
    named = [one for one in names if isinstance(one, str) and one]
    if known:
        found += [unknown("metric", one, known) for one in named if one not in known]
    return found


def _objective_problems(metric: object, direction: object) -> list[str]:
    """Return what is wrong with the metrics and their directions."""
    found = []
    names = metric if isinstance(metric, list) else [metric]
    directions = direction if isinstance(direction, list) else [direction]
    for name in names:
        if not isinstance(name, str) or not name:
            found.append(f"metric must be the name of a metric, got {name!r}")
        else:
            found += name_problems("metric", name)
    if isinstance(metric, list) and len(set(map(str, names))) < max(len(names), 1):
        found.append(f"metrics must be different names, at least one, got {metric!r}")
    for one in directions:
        if one not in (*Direction, *(each.value for each in Direction)):
            found.append(f"direction must be 'maximize' or 'minimize', got {one!r}")
    if len(names) != len(directions) or isinstance(metric, list) != isinstance(direction, list):
        found.append(
            "there must be one direction for each metric, got "
            f"metric={metric!r}, direction={direction!r}"
        )
    return found


def _value_problems(
    name: object, merge: object, config: object, needs: object, on_nan: object
) -> list[str]:
    """Return which arguments of `create_study` are not of the kind that they must be."""
    found = []
    if isinstance(name, str):
        found += name_problems("name", name)
    else:
        found.append(f"name must be a string that is not empty, got {name!r}")
    if not isinstance(merge, bool):
        found.append(f"merge must be True or False, got {merge!r}")
    if on_nan not in ("rank", "fail"):
        found.append(f"on_nan must be 'rank' or 'fail', got {on_nan!r}")
    if config is not None and not isinstance(config, Mapping):
        found.append(f"config must be a mapping, got {config!r}")
    amounts = list(needs.values()) if isinstance(needs, Mapping) else [needs]
    if needs is not None and not all(_is_amount(amount) for amount in amounts):
        found.append(f"needs must be numbers > 0 by name, got {needs!r}")
    return found


def _listed(given: object) -> Any:
    """Return a list of what can be listed, else what was given, for others to refuse."""
    return list(given) if isinstance(given, Iterable) else given


def _direction_json(direction: str | Direction | list[str | Direction]) -> str | list[str]:
    if isinstance(direction, list):
        return [Direction.parse(one).value for one in direction]
    return Direction.parse(direction).value


def _place_problems(storage: object, database: object) -> list[str]:
    """Return what is wrong with where things shall be kept."""
    found = []
    if not isinstance(storage, str | os.PathLike | None) or storage == "":
        found.append(f"storage must be a folder or a URL, got {storage!r}")
    if not isinstance(database, str | os.PathLike | None) or database == "":
        found.append(f"database must be a file or a URL, got {database!r}")
    return found


def _budget_problems(trainer: object, budget: object, keep: object) -> Iterator[str]:
    """Return what is wrong with how much shall be kept."""
    yield from retention_problems(budget, keep)
    if trainer is None and budget is not None:
        yield f"budget must be None without a trainer, which saves nothing, got {budget!r}"


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _fingerprint(
    trainer: type | None,
    config: Mapping[str, object],
    depends_on: Iterable[object],
    reuse: str,
) -> Fingerprint | None:
    if trainer is None:
        return None
    if reuse == "exact":
        config = {**config, "__environment__": environment("any")}
    return fingerprint(trainer, config, depends_on=tuple(depends_on))


def default_database(url: str) -> str:
    """Return where the studies of a checkpoint store are recorded unless told otherwise."""
    if url.startswith("memory://"):
        return "sqlite://"
    if "://" in url and not url.startswith("file://"):
        return "dasktune.db"
    return str(Path(url.removeprefix("file://")) / "dasktune.db")


def _open_row(
    database: Database, name: str, spec: Mapping[str, object], load_if_exists: bool
) -> StudyRow:
    """Return the study's row; refuse one that was made for something else."""
    found = database.study(name)
    if found is None:
        # A control has a root of its own, so that it shares nothing with any other study.
        own = "" if spec["merge"] else uuid4().hex
        root = root_key(f"{spec['fingerprint']}{own}", int(str(spec["seed"])))
        made = database.create_study(name, root=root, spec=dict(spec), created=time.time())
        if made is not None:
            return made
        found = database.study(name)  # which another process has made in this moment
    if not load_if_exists or found is None:
        raise ConfigurationError(
            f"study {name!r} exists already; open it with load_if_exists=True, or choose "
            "another name"
        )
    refuse(
        f"study {name!r} was created with {_shown(found.spec, field)}, got "
        f"{_shown(spec, field)}{_differing(found.spec, spec, field)}; another one needs another "
        "name"
        for field in ("fingerprint", "metric", "direction", "seed", "merge")
        if found.spec.get(field) != spec[field]
    )
    refuse(_store_problems(name, found.spec, spec))
    return found


def _store_problems(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Refuse a second store: what a study has trained lies in one.

    One that was moved is known by its name, one that was emptied by its place.
    """
    known = before.get("storage", now["storage"])
    if before.get("store") != now["store"] and known != now["storage"]:
        yield (
            f"study {name!r} must have the store that it was created with, {known}, got "
            f"{now['storage']}; another store needs another name"
        )


def _whole(url: str) -> str:
    """Return the place of a store as it is known from everywhere on this machine."""
    return url if "://" in url else str(Path(url).expanduser().absolute())


def _differing(before: Mapping[str, Any], now: Mapping[str, Any], field: str) -> str:
    """Return in words which parts of two fingerprints differ; early studies kept none."""
    if field != "fingerprint" or not (before.get("parts") and now.get("parts")):
        return ""
    return f"; what differs: {', '.join(differing(before['parts'], now['parts']))}"


def _shown(spec: Mapping[str, object], field: str) -> str:
    """Return one thing that a study was created with, in words."""
    if field != "fingerprint":
        return f"{field} {spec.get(field)!r}"
    return f"the trainer {spec.get('trainer')} (code, config and data: {str(spec.get(field))[:12]})"
