"""Creating and opening studies: a `StudyConfig` is checked, then opened."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

from dasktune._cluster import fork_server
from dasktune._engine.scaling import Scale
from dasktune._results.keep import DEFAULT, note_keep
from dasktune._results.rules import other_rule
from dasktune._study.config import StudyConfig, direction_needed
from dasktune._study.emptied_store import missing_states, whole
from dasktune._study.folder import runs_study_file, study_folder
from dasktune._study.from_optuna import OF_STUDY, explained
from dasktune._study.main_guard import guard_problem
from dasktune._study.study import Study, UnopenedStudy
from dasktune.errors import ConfigurationError, StorageError, refuse
from dasktune.graph.audits import SHARE
from dasktune.graph.keys import root_key
from dasktune.mirror import Logger
from dasktune.needs import GivenNeeds, NeedsFunction
from dasktune.storage.checkpoints import CHECK_PATIENCE, CheckpointStore
from dasktune.storage.database.database import Database
from dasktune.storage.database.rows import StudyRow
from dasktune.storage.layout import MARKER
from dasktune.storage.retention import Keep
from dasktune.storage.verdicts import Verdicts
from dasktune.trainer.base import GivenTrainer, name_problems_of
from dasktune.trainer.fingerprint.fingerprint import differing, is_outdated
from dasktune.trainer.given import as_trainer
from dasktune.trainer.unreached import unreached_code
from dasktune.types import Direction

logger = logging.getLogger(__name__)

Opener = Callable[[StudyConfig], Study]
"""Makes a study of a configuration, as `open_study` does."""


@explained(OF_STUDY, 'create_study(train, name="digits", metric="accuracy", ...)')
def create_study(
    trainer: GivenTrainer | None,
    *,
    name: str,
    metric: str | Iterable[str],
    storage: str | os.PathLike[str] | None = None,
    database: str | None = None,
    direction: str | Direction | Iterable[str | Direction] | None = None,
    load_if_exists: bool = False,
    if_changed: str = "refuse",
    seed: int = 0,
    config: Mapping[str, object] | None = None,
    report_every: int = 1,
    checkpoint_every: int | None = None,
    merge: bool = True,
    needs: GivenNeeds | NeedsFunction | None = None,
    scale: Scale | None = None,
    depends_on: Iterable[object] = (),
    reuse: str = "code",
    portable: bool | None = None,
    on_nan: str = "rank",
    loggers: Iterable[Logger] = (),
    budget: str | int | None = None,
    keep: str = DEFAULT,
    audit: float = SHARE,
    weight: float = 1.0,
) -> Study:
    """Create a study, or open the one of that name.

    Parameters
    ----------
    trainer
        The class that trains (`dasktune.Trainer`), or a function that trains in a loop and takes
        a `dasktune.Run`. None for a loop of your own with
        `Study.ask` and `Study.tell`; such trials share nothing.
    name
        The study's name in its database.
    metric
        Name of the metric to optimise, among those that ``evaluate`` returns; or several names,
        for tuners that trade metrics off.
    storage
        Where checkpoints go: a folder or a URL of fsspec; if None, ``runs/<name>`` with
        dashes in place of characters that are neither letters nor digits. A relative folder is in
        that of the file that defines the study: a study file, or the script that runs; in a
        notebook, in the working directory.
    database
        A path or a URL of SQLAlchemy; if None, ``dasktune.db`` in a local `storage`.
    direction
        ``minimize`` or ``maximize``; one for each metric if there are several. It may be left out
        if the name of the metric has the word ``loss`` or ``error``, which is minimized, and for a
        study that exists.
    load_if_exists
        Open the study if it exists; False refuses the name of an existing study. ``dasktune run``
        and the other commands open the study of their file in any case.
    if_changed
        For a study that exists with other code, config or data of the trainer: ``refuse`` refuses
        it, ``new`` opens the version of the study that has this code, or creates
        the next one, ``<name>-2`` and so on, in the same store. ``new`` implies `load_if_exists`.
        Useful in notebooks, where classes change in their cells. `Study.name` names the version.
    seed
        Seed of all training; part of every state's key.
    config
        JSON values by name that every trainer gets as ``self.config``, a dict. A dataclass, a
        model of pydantic, an attrs class, a namespace of argparse, a config of OmegaConf and
        numbers of NumPy become such values.
    report_every
        Evaluate after every so many steps, and wherever a tuner asks for a report.
    checkpoint_every
        Also save every so many steps; None saves where it costs at most 2% of the time.
    merge
        Whether trials share the steps that they have in common. False is for control
        experiments: its trials share nothing with each other or with other studies.
    needs
        The amounts and tags that the worker of a stage must have, such as ``{"GPU": 1,
        "tags": ["a100"]}``. Amounts are resources of Dask, which a stage uses up while it runs;
        tags are words that mark workers. A list of such mappings has alternatives, the
        preferred first. Or a function: it gets a configuration's values at step 0 by name, and
        returns a mapping, a list, or None for no needs. A `dasktune.Branch` of a space may have
        further needs.
    scale
        Lets several workers train one trial together when fewer trials live than workers, such as
        ``dasktune.Scale(max=8)``: up to 8 workers of one compute class, as long as they keep 75%
        of their speed. It needs a `TorchTrainer` that divides itself, whose trials need one device
        each. The number changes where a tuner asks for more of a trial, at a rung of ASHA for
        example, or where it proves not to pay. It is part of the state
        key; metrics are those of one device up to rounding.
    depends_on
        Further functions, classes or modules whose code decides the result.
    reuse
        ``code`` reuses states of the same code, config and data; ``exact`` also demands
        the same versions of Python, NumPy, torch (where it is installed) and dasktune, and
        numeric classes as with ``portable=False``.
    portable
        Whether a trial may go to another *numeric class* of workers, on which the same steps give
        other bits. None: a trial stays on the class that begins it, with all trials that have the
        same values at step 0; states of other classes do not serve it. Each model of GPU is a
        class, and all CPUs together are one. False: the same, but each architecture of CPUs is a
        class. True: a trial may change its class between two stages; its results are then those
        of a trial alone up to rounding only.
    on_nan
        ``rank`` ranks a metric that is NaN or infinite below all others, ``fail`` ends its
        trial as a failure.
    loggers
        Show each trial as a run of another program while the study runs, such as
        ``[dasktune.integrations.tensorboard.TensorBoard("runs/tensorboard")]``. Steps that
        trials share are in the run of one of them, and the runs of the others name it.
    budget
        Most bytes that all checkpoints of the store may take, those of other studies
        included, such as ``"20 GB"``; None is no limit. The least valuable states are evicted
        first, and are trained again if they are needed later. Each driver that uses the store
        keeps to its own budget.
    keep
        The trials whose last states are never evicted: ``best:3`` for the 3 best trials,
        ``all`` or ``none``.
    audit
        Share (0 to 1) of the stages resuming from a stored state that are audited. An audit
        trains some steps again, and compares: does resuming give the same as going on? The
        first three are audited in any case, unless the share is 0. In a study of more than
        1,000 steps, audits cost at most 2% of the steps; a smaller study has one audit of at
        most 30 steps.
    weight
        If several studies run on one cluster, a study with a weight of 2 gets twice as many
        workers as a study with a weight of 1, as long as it can use them.

    Raises
    ------
    ConfigurationError
        If arguments are invalid, or a study of that name was created with another trainer,
        metric, direction or seed: all problems at once.
    StorageError
        If the store or the database cannot be written.
    """
    opener = _OPENER.get()
    study = opener(
        StudyConfig(
            trainer=as_trainer(trainer),
            name=name,
            metric=metric,
            storage=storage,
            database=database,
            direction=direction,
            load_if_exists=load_if_exists,
            if_changed=if_changed,
            seed=seed,
            config=config,
            report_every=report_every,
            checkpoint_every=checkpoint_every,
            merge=merge,
            needs=needs,
            scale=scale,
            depends_on=depends_on,
            reuse=reuse,
            portable=portable,
            on_nan=on_nan,
            loggers=loggers,
            budget=budget,
            keep=keep,
            audit=audit,
            weight=weight,
            folder=study_folder(),
        )
    )
    if opener is open_study:
        _prepare_for_a_run(study)
    return study


def _prepare_for_a_run(study: Study) -> None:
    """Begin to import what local workers will need, while the caller goes on.

    Commands do so themselves: they know the cluster.
    """
    config = study.study_config
    if config.trainer is None or config.needs is not None or runs_study_file():
        return
    if not study.database.count_trials(study.results.row.id) and guard_problem() is None:
        fork_server.start_ahead(config.trainer.__module__)


def open_study(
    config: StudyConfig, *, open_database: Callable[[str], Database] = Database
) -> Study:
    """Create the study of a configuration, or open it if it exists and may be opened.

    Raises
    ------
    ConfigurationError
        If a study of that name exists that may not be opened, or differs from the configuration.
    StorageError
        If the store or the database cannot be written.
    """
    spec = config.spec()
    store, place = CheckpointStore(config.store_url), whole(config.store_url)
    if config.folder is None and place != config.store_url and not Path(place, MARKER).exists():
        logger.warning("study %s: new store in %s", config.name, place)
    # A store may be missing of which a database lists the states: then none is made in its place.
    is_new = _has_database(config) and not _is_store(config.store_url)
    name = "" if is_new else store.check()
    database = open_database(config.database_url)
    try:
        row = database.study(config.name)
        if row is not None and is_new:
            refuse(_store_problems(config.name, row.spec, {"store": "", "storage": place}))
        if row is None or row.spec.get("store") != name:
            refuse(missing_states(store, database, name))
        spec |= {"store": name or store.check(), "storage": place}
        if config.recall_files(Verdicts(database, store.files)):
            spec |= config.spec()
        config = _version(config, spec, database)
        row = _open_row(database, config, spec)
    except (ConfigurationError, StorageError):
        database.close()
        raise
    note_keep(database, row.id, Keep.parse(config.keep))
    return Study(config, row=row, database=database, store=store)


def _has_database(config: StudyConfig) -> bool:
    return "://" in config.database_url or Path(config.database_url).exists()


def _is_store(url: str) -> bool:
    """Return whether there is a store; what cannot be read is left to the check of the store."""
    try:
        return CheckpointStore(url, CHECK_PATIENCE).name_if_any() is not None
    except StorageError:
        return True


_OPENER: ContextVar[Opener] = ContextVar("opener", default=open_study)
"""Opens the studies of this context: other threads open theirs as usual."""


@contextmanager
def opening_with(opener: Opener) -> Iterator[None]:
    """Make `create_study` hand its configuration to another opener than `open_study`.

    For programs that load a study file of a user and must know or move its study.
    """
    token = _OPENER.set(opener)
    try:
        yield
    finally:
        _OPENER.reset(token)


def open_in(folder: Path) -> Opener:
    """Return an opener that keeps a study in a folder, with no logger or budget."""

    def opener(config: StudyConfig) -> Study:
        moved = replace(
            config,
            storage=folder / "store",
            database=None,
            loggers=(),
            budget=None,
        )
        if config.known_direction is None:  # the study that exists elsewhere has one
            is_single, least = isinstance(config.metric, str), Direction.MINIMIZE
            moved = replace(moved, direction=least if is_single else [least for _ in config.metric])
        return open_study(moved)

    return opener


def config_of(make: Callable[[], object]) -> StudyConfig | None:
    """Return the configuration of the first study that `make` creates; nothing is opened.

    `make` gets a study that has nothing but its configuration. None if it calls no `create_study`.
    """
    configs: list[StudyConfig] = []

    def note(config: StudyConfig) -> Study:
        configs.append(config)
        return UnopenedStudy(config)

    with opening_with(note):
        try:
            make()
        except (Exception, SystemExit):  # code after create_study, which fails without a study
            if not configs:
                raise
    return configs[0] if configs else None


def _version(config: StudyConfig, spec: Mapping[str, Any], database: Database) -> StudyConfig:
    """Return the configuration with the name of the version of a study that has its code.

    It is the first of ``name``, ``name-2``, ``name-3``, ... that has it, or that does not exist.
    """
    if config.if_changed != "new":
        return config
    name, before = config.name, None
    for number in count(2):
        row = database.study(name)
        if row is None or _is_equal(row.spec, spec, "fingerprint"):
            break
        name, before = f"{config.name}-{number}", row
    if row is None and before is not None:
        logger.warning(
            "study %s is a new version of %s%s",
            *(name, before.name, _differing(before.spec, spec, "fingerprint")),
        )
    elif name != config.name:
        logger.warning("study %s goes on: this version of %s has this code", name, config.name)
    places = config.store_url, config.database_url
    return replace(config, name=name, load_if_exists=True, storage=places[0], database=places[1])


def _open_row(database: Database, config: StudyConfig, spec: dict[str, Any]) -> StudyRow:
    """Return the row of a new or existing study; refuse a study that differs."""
    name, row = config.name, database.study(config.name)
    if row is None:
        if spec["direction"] is None:
            raise ConfigurationError(direction_needed(config.metric))
        refuse(name_problems_of(config.trainer, ()))
        # A control has a root of its own, so that it shares nothing with any other study.
        own = "" if spec["merge"] else uuid4().hex
        root = root_key(f"{spec['fingerprint']}{own}", int(str(spec["seed"])))
        made = database.create_study(name, root=root, spec=dict(spec), created=time.time())
        if made is not None:
            _warn_of_other_rules(database, name)
            _warn_of_gaps(name, spec)
            if sentence := unreached_code(config.trainer):
                logger.warning("study %s: %s", name, sentence)
            if config.direction is None:
                logger.info(
                    "study %s: %s is to be minimized, as its name says; direction='maximize' "
                    "would say otherwise",
                    *(name, config.metric),
                )
            return made
        row = database.study(name)  # another process has created it just now
    # A command goes on with the study of its file.
    if not (config.load_if_exists or runs_study_file()) or row is None:
        raise ConfigurationError(
            f"study {name!r} exists already; open it with load_if_exists=True, or choose "
            "another name"
        )
    if config.direction is None:
        spec["direction"] = row.spec.get("direction")
    refuse(
        f"study {name!r} was created with {_shown(row.spec, field)}, got "
        f"{_shown(spec, field)}{_differing(row.spec, spec, field)}; another one needs another "
        "name"
        for field in ("fingerprint", "metric", "direction", "seed", "merge", "portable")
        if not _is_equal(row.spec, spec, field)
    )
    refuse(_store_problems(name, row.spec, spec))
    if problem := other_rule(row):
        logger.warning("%s: its results can only be read", problem)
    return row


def _warn_of_other_rules(database: Database, name: str) -> None:
    """Log a warning if a new study cannot use states of the database, for another rule."""
    others = [row.name for row in database.studies() if is_outdated(row.spec)]
    if others:
        logger.warning(
            "study %s does not use states of %d studies (%s) whose fingerprints were taken by "
            "another rule: their code may differ; 'dasktune gc' lists these states",
            *(name, len(others), ", ".join(others[:3]) + ", ..." * (len(others) > 3)),
        )


def _warn_of_gaps(name: str, spec: Mapping[str, Any]) -> None:
    """Log the code that the fingerprint of a new study does not cover, and the remedy."""
    # Most trainers read their data without a word; the command shows this gap.
    gaps = [f"{gap} ({why})" for gap, why in spec["gaps"].items() if gap != "data"]
    if gaps:
        logger.warning(
            "study %s: the fingerprint cannot tell whether this stays the same: %s; "
            "'dasktune fingerprint' shows all that counts",
            *(name, "; ".join(gaps[:5]) + "; ..." * (len(gaps) > 5)),
        )


def _is_equal(before: Mapping[str, Any], now: Mapping[str, Any], field: str) -> bool:
    """Return whether a study of the database may be opened with a field of the configuration."""
    if field != "fingerprint" or not is_outdated(before) or now["fingerprint"] == "none":
        return bool(before.get(field) == now[field])
    return not before.get("parts") or not _differing_parts(before, now)


def _differing_parts(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return in words the differing parts of two fingerprints that may be compared."""
    same_rule = not is_outdated(before)
    return differing(before["parts"], now["parts"], same_rule=same_rule)


def _store_problems(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problem of a second store: all states of a study lie in one store.

    A moved store is known by its name, an emptied store by its place.
    """
    known = before.get("storage", now["storage"])
    if before.get("store") != now["store"] and known != now["storage"]:
        yield (
            f"study {name!r} must have the store that it was created with, {known}, got "
            f"{now['storage']}; another store needs another name"
        )


def _differing(before: Mapping[str, Any], now: Mapping[str, Any], field: str) -> str:
    """Return in words the parts of two fingerprints that differ, if both were stored."""
    if field != "fingerprint" or not (before.get("parts") and now.get("parts")):
        return ""
    return f"; what differs: {', '.join(_differing_parts(before, now))}"


def _shown(spec: Mapping[str, object], field: str) -> str:
    """Return a field of a study's description, in words."""
    if field != "fingerprint":
        return f"{field} {spec.get(field)!r}"
    return f"the trainer {spec.get('trainer')} (code, config and data: {str(spec.get(field))[:12]})"
