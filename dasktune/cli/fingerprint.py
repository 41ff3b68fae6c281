"""The command ``fingerprint``: show a trainer's fingerprint, and compare it with others."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from dasktune.cli.options import AsJson, Config, StudyPath, print_json
from dasktune.errors import ConfigurationError, unknown

if TYPE_CHECKING:
    from dasktune._study.config import StudyConfig
    from dasktune.storage.database.database import Database
    from dasktune.trainer import Fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The difference between a fingerprint and another one.

    Parameters
    ----------
    is_same
        Whether a study with one fingerprint uses the states of the other.
    differs
        The parts that differ, in words; None if the parts of the other one were not stored.
    """

    other: str
    is_same: bool
    differs: Sequence[str] | None

    def __str__(self) -> str:
        if self.is_same:
            return f"{self.other}: the same; its states are found"
        parts = "unknown, its parts were not kept" if self.differs is None else ""
        return f"{self.other}: differs in {parts or ', '.join(self.differs or ())}"


class _Other(NamedTuple):
    """A fingerprint to compare with."""

    name: str
    digest: str
    parts: Mapping[str, str] | None
    seed: int
    rule: int


def fingerprint(
    file: StudyPath,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET",
            help="Compare with another study file, or with the studies of a storage folder or "
            "URL or a database; with the file's own study, as recorded, if not given.",
        ),
    ] = None,
    study: Annotated[str | None, typer.Option(help="Compare with the study of this name.")] = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Show what counts as the same trainer, what does not count, and what has changed.

    Runs the file and, if it has one, the trainer's fingerprint_data; trains nothing, and
    neither makes nor changes a study.
    """
    settings = config or ()
    study_config, own = _read(file, settings)
    others = _others(study_config, against, study, settings)
    compared = [_compared(own, study_config.seed, other) for other in others]
    if as_json:
        document = {
            "fingerprint": own.digest,
            "rule": own.rule,
            "study": study_config.name,
            "seed": study_config.seed,
            "parts": dict(own.parts),
            "gaps": dict(own.gaps),
            "packages": _versions(own.packages),
            "compared": [asdict(comparison) for comparison in compared],
        }
        print_json(document)
    else:
        typer.echo("\n".join(_lines(own, study_config, compared)))


def _read(file: Path, settings: Sequence[str]) -> tuple[StudyConfig, Fingerprint]:
    """Return the configuration of a file's study, and its fingerprint now.

    Files that checks have seen count as the database of the study has them.
    """
    from dasktune._study.create import config_of
    from dasktune.cli.study_file import load
    from dasktune.storage.verdicts import Verdicts

    config = config_of(lambda: load(file, settings).study())
    if config is None:
        raise ConfigurationError(f"{file} must call create_study, or nothing says what it trains")
    config.spec()  # takes the fingerprint
    database = _opened(config.database_url, must_exist=False)
    if database is not None:
        try:
            if config.recall_files(Verdicts(database, None)):
                config.spec()
        finally:
            database.close()
    if config.taken is None:
        raise ConfigurationError(f"{file}: study {config.name!r} has no trainer, so no fingerprint")
    return config, config.taken.fingerprint


def _others(
    config: StudyConfig, against: str | None, study: str | None, settings: Sequence[str]
) -> list[_Other]:
    """Return the fingerprints to compare with."""
    from dasktune.trainer.fingerprint.fingerprint import rule_of

    if against is not None and against.endswith(".py"):
        if study is not None:
            raise ConfigurationError(f"--study is for a storage or database, got {against!r}")
        there, other = _read(Path(against), settings)
        return [_Other(against, other.digest, other.parts, there.seed, other.rule)]
    url = config.database_url if against is None else _database_of(against)
    database = _opened(url, must_exist=against is not None)
    if database is None:
        return []
    try:
        specs = {row.name: row.spec for row in database.studies()}
    finally:
        database.close()
    if study is not None and study not in specs:
        raise ConfigurationError(unknown("study", study, specs))
    name = study or (config.name if against is None or config.name in specs else None)
    return [
        _Other(
            f"study {known!r}",
            spec["fingerprint"],
            spec.get("parts"),
            spec["seed"],
            rule_of(spec),
        )
        for known, spec in specs.items()
        if name in (None, known)
    ]


def _compared(own: Fingerprint, seed: int, other: _Other) -> Comparison:
    from dasktune.trainer.fingerprint.fingerprint import differing

    seeds = [] if seed == other.seed else [f"seed ({other.seed}, here {seed})"]
    if own.digest == other.digest:
        return Comparison(other=other.name, is_same=not seeds, differs=seeds)
    if other.rule != own.rule:
        seeds.insert(0, f"the rule of fingerprints ({other.rule}, here {own.rule})")
    if not other.parts:
        return Comparison(other=other.name, is_same=False, differs=None)
    parts = differing(other.parts, own.parts, same_rule=other.rule == own.rule)
    return Comparison(other=other.name, is_same=False, differs=[*parts, *seeds])


def _database_of(target: str) -> str:
    from dasktune.cli.ls import places_of

    database = places_of(target).database
    if database is None:
        raise ConfigurationError(f"--against must have a database beside it, got {target!r}")
    return database


def _opened(url: str, *, must_exist: bool) -> Database | None:
    """Return the open database; None if it is missing and `must_exist` is false."""
    from dasktune.storage.database.database import Database

    path = Path(url.removeprefix("sqlite:///"))
    is_missing = url == "sqlite://" or ("://" not in str(path) and not path.exists())
    return None if is_missing and not must_exist else Database(url, create=False)


def _lines(own: Fingerprint, config: StudyConfig, compared: Sequence[Comparison]) -> Iterable[str]:
    from dasktune.trainer.environment import environment

    yield own.digest
    width = max(map(len, own.parts), default=0)
    yield from (f"  {name:{width}}  {part}" for name, part in own.parts.items())
    yield f"seed {config.seed}: part of each state's key beside this"
    if own.gaps:
        yield "not covered:"
        yield from (f"  {name}: {why}" for name, why in own.gaps.items())
    yield "not covered, the versions found here:"
    recorded = environment("any")
    for name, version in _versions(own.packages).items():
        known = "recorded with each checkpoint" if name in recorded else "recorded nowhere"
        yield f"  {name} {version or '(no version)'}: {known}"
    yield from (f"compared with {comparison}" for comparison in compared)
    if not compared:
        yield f"study {config.name!r} has not been created yet"


def _versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Return the installed versions by import name, with the version of Python."""
    names = sorted({*packages, "dasktune"})
    return {"python": platform.python_version(), **{name: _version(name) for name in names}}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        # A distribution may have another name than its module.
        for distribution in metadata.packages_distributions().get(name, ()):
            return metadata.version(distribution)
    return None
