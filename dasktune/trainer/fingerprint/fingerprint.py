"""The fingerprint: a digest of everything that decides a result beside values and seed.

States are stored under the fingerprint of their trainer. It covers the trainer's code, the code
and constants to which that refers, its config, its declared version, and its data if the
trainer identifies them.

Definitions count by their source and by what they are when the fingerprint is taken: the members
of classes, the defaults and attributes of functions. `RULE` numbers this rule. Rule 1, of studies
that name no rule, knew the source only, and took programs for equal that are not.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

from dasktune.errors import ConfigurationError, refuse, shown
from dasktune.trainer.fingerprint.data import data_digest, json_digest
from dasktune.trainer.fingerprint.named_files import MOST_BYTES, covered_files, left_out, path_of
from dasktune.trainer.fingerprint.packages import IN_ENVIRONMENT, installed_digest
from dasktune.trainer.fingerprint.read_files import LABEL, changed_files, code_folder, places
from dasktune.trainer.fingerprint.references import NOT_COVERED, Code
from dasktune.trainer.fingerprint.written import Key
from dasktune.trainer.given_config import config_remedy
from dasktune.trainer.settings import SETTINGS, changed_settings

RULE = 2
"""Number of the rule by which fingerprints are taken; part of each digest."""

_NO_CODE = ("config", "data", "version")
_SEEDED = tuple(f"dasktune.trainer.{name}" for name in ("torch", "function", "objective"))
_LARGE_FILE = "it is larger than 1 MiB; count it by fingerprint_data: data_digest(path)"
_UNKNOWN_READ = (
    "code may read it by a name that is known only when it runs; if it does, count it by "
    "fingerprint_data: data_digest(path)"
)
MOST_PATH = 1024
"""Length from which on a text is no path."""

_NO_FILES: Mapping[str, str] = MappingProxyType({})
_NO_DATA = "the trainer has no fingerprint_data(config); add one, or count data in version"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """The digest of a trainer, and the parts that it covers.

    Parameters
    ----------
    digest
        BLAKE2b of 128 bits, hexadecimal.
    parts
        By name (``class Net``, ``function augment``, ``config``, ``data``) the digest of
        each part; ``version`` as it is declared.
    gaps
        By name, references of the trainer that are not covered, and the remedy.
    packages
        Import names of the installed packages to which the trainer refers. Their code is not
        covered.
    rule
        The rule by which it was taken.
    """

    digest: str
    parts: Mapping[str, str]
    gaps: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    rule: int = RULE

    def __str__(self) -> str:
        lines = [self.digest, *(f"  {name}: {part}" for name, part in self.parts.items())]
        gaps = [f"  not covered: {name}: {why}" for name, why in self.gaps.items()]
        return "\n".join([*lines, *gaps])


def fingerprint(
    trainer_class: type, config: Mapping[str, object], *, depends_on: Iterable[object] = ()
) -> Fingerprint:
    """Return the fingerprint of a trainer with its config.

    It covers the class, its bases, and the functions, classes and constants to which they
    refer by name (names that they import at run time included), and their references in turn:
    the source, and the present members of classes, defaults and attributes of functions.
    A module that is used as a value is covered as a whole. Code of installed packages is
    covered only if the trainer, or a value in `depends_on`, is from the same package; code of
    Python and dasktune is not covered, because the environment is recorded with every
    checkpoint. Other content of a module does not count, so a study file may change its search
    space.

    Parameters
    ----------
    trainer_class
        The trainer. A class method ``fingerprint_data(config)``, if there is one, returns
        a JSON value that identifies its data; see `data_digest`.
    config
        What the trainer gets as ``config``: JSON values. Keys in the class's
        ``ignored_config`` do not count.
    depends_on
        More functions, classes, modules or constants to cover, if the trainer reaches them in
        other ways than by name.

    Raises
    ------
    ConfigurationError
        If the config holds other values than JSON, or source cannot be read.
    """
    return taken(trainer_class, config, depends_on=depends_on).fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenFingerprint:
    """A fingerprint with what it was taken from, to notice a change fast and to name it.

    Parameters
    ----------
    fingerprint
        As `fingerprint` returns it.
    rest
        The digests of all parts that are not of code, by name.
    """

    fingerprint: Fingerprint
    code: Code
    rest: Mapping[str, str]

    def holds(
        self,
        trainer_class: type,
        config: Mapping[str, object],
        read_files: Mapping[str, str] = _NO_FILES,
    ) -> bool:
        """Return whether the same trainer and config have the same fingerprint now.

        This takes microseconds, and the time of ``fingerprint_data`` if the trainer has one, and
        of a look at the files. In doubt it returns False: then a new fingerprint decides.
        """
        if not self.code.guards.hold():
            return False
        rest, _ = _rest(trainer_class, config, self.code, read_files)
        return dict(self.rest) == dict(rest)

    def changes(self, now: TakenFingerprint) -> list[str]:
        """Return the names of what another fingerprint of the same trainer has changed."""
        changed = differing(self.fingerprint.parts, now.fingerprint.parts)
        names: set[str] = set()
        for name in changed:
            before, after = self.code.traces.get(name), now.code.traces.get(name)
            constants = set()
            if before is not None and after is not None:
                both = {*before.constants.items()} ^ {*after.constants.items()}
                constants = {f"constant {constant}" for constant, _ in both}
                if before.sources != after.sources:
                    constants = set()
            names |= constants or {name}
        return sorted(names)


def taken(
    trainer_class: type,
    config: Mapping[str, object],
    *,
    depends_on: Iterable[object] = (),
    with_packages: bool = False,
    read_files: Mapping[str, str] = _NO_FILES,
) -> TakenFingerprint:
    """Return the fingerprint of a trainer with what it was taken from.

    Parameters
    ----------
    trainer_class, config, depends_on
        As for `fingerprint`.
    with_packages
        Whether the versions and the contents of the packages count to which the code refers.
    read_files
        The files that earlier checks of this trainer saw it read; see
        `dasktune.trainer.fingerprint.read_files`. Those with another content now are parts.
    """
    named = (trainer_class, *depends_on)
    code, roots = _followed(named, is_seeded=_seeds_generators(trainer_class))
    rest, gaps = _rest(trainer_class, config, code, read_files)
    packages: list[tuple[str, str]] = []
    if with_packages:
        versions = sorted(code.packages - IN_ENVIRONMENT)
        packages = [(f"package {name}", installed_digest(name)) for name in versions]
    parts = [*sorted(code.parts), *rest, *packages]
    return TakenFingerprint(
        fingerprint=Fingerprint(
            digest=json_digest([f"rule {RULE}", roots, parts]),
            parts=_named((name, part) for name, part in parts if part != NOT_COVERED),
            gaps={**code.gaps, **gaps},
            packages=tuple(sorted(code.packages)),
        ),
        code=code,
        rest=dict(rest),
    )


def _followed(named: tuple[object, ...], *, is_seeded: bool) -> tuple[Code, list[str]]:
    """Return the references of things, and the labels of the things."""
    homes = frozenset(_package_of(thing) for thing in named) - {""}
    written: frozenset[Key] = frozenset()
    while True:
        code = Code(homes, is_seeded=is_seeded, written=written)
        roots = [code.add(thing) for thing in named]
        # Definitions that were covered before a global was known to be written, or before it was
        # noticed that it was bound again, have another value of it.
        if not code.firsts.is_stale and code.firsts.written == written:
            return code, roots
        written = frozenset(code.firsts.written)


def _rest(
    trainer_class: type,
    config: Mapping[str, object],
    code: Code,
    read_files: Mapping[str, str],
) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """Return the parts that are not of code, and the gaps."""
    ignored = getattr(trainer_class, "ignored_config", ())
    kept = {key: value for key, value in config.items() if key not in ignored}
    refuse(_json_problems(kept, "config"))
    parts = [("config", json_digest(kept))]
    parts.append(("version", str(getattr(trainer_class, "version", "1"))))
    if (data := _data(trainer_class, config)) is not None:
        parts.append(("data", json_digest(data)))
    covered = {name for name, _ in code.parts}
    parts += [
        (f"setting {name}", json_digest(value))
        for name, value in changed_settings().items()
        if f"setting {SETTINGS[name].attribute}" not in covered
    ]
    folder, ignored = code_folder(trainer_class), left_out(trainer_class, config)
    seen = places(read_files, folder)
    files, gaps = _files(code, kept, ignored, seen, has_data=data is not None)
    if data is None:
        gaps["data"] = _NO_DATA
    changed = changed_files(read_files, folder)
    return parts + files + [(f"{LABEL}{path}", content) for path, content in changed], gaps


def _files(
    code: Code,
    config: Mapping[str, object],
    ignored: list[str],
    seen: list[str],
    *,
    has_data: bool,
) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """Return the parts of the files that the code reads by name, and the gaps.

    A file that only the code of an unknown call may read is a gap, unless a check has seen it: it
    may be a file that the training writes, whose content says nothing about it.
    """
    paths = [path_of(path, scope, config) for path, scope in code.reads]
    known = [path for path in paths if path is not None]
    parts, gaps = [], {}
    for path, nbytes in covered_files(known, ignored):
        label = f"file {code.portable(path)}"
        if nbytes <= MOST_BYTES:
            parts.append((label, data_digest(path)))
        elif not has_data:
            gaps[label] = _LARGE_FILE
    if len(known) < len(paths) and not has_data:
        texts = {*code.file_names, *_texts_in(config)} - set(known)
        beside = {os.path.join(folder, text) for folder in code.folders for text in texts}
        for path, _ in covered_files(texts | beside, [*ignored, *seen]):
            gaps[f"file {code.portable(path)}"] = _UNKNOWN_READ
    return parts, gaps


def _texts_in(value: object) -> Iterator[str]:
    """Yield the texts in a JSON value that may be paths."""
    if isinstance(value, str) and 0 < len(value) < MOST_PATH and "\0" not in value:
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts_in(item)


def _seeds_generators(trainer_class: type) -> bool:
    """Return whether dasktune seeds the global generators before this trainer is built."""
    homes = {base.__module__ for base in trainer_class.__mro__}
    return not homes.isdisjoint(_SEEDED)


def code_parts(trainer_class: type) -> dict[str, str]:
    """Return the parts of a trainer's fingerprint that are of code, by name.

    Raises
    ------
    ConfigurationError
        If source cannot be read.
    """
    code, _ = _followed((trainer_class,), is_seeded=True)
    return _named((name, part) for name, part in sorted(code.parts) if part != NOT_COVERED)


def followed(trainer_class: type) -> Code | None:
    """Return the references of a trainer's code; None for code without source."""
    try:
        return _followed((trainer_class,), is_seeded=True)[0]
    except ConfigurationError:
        return None


def differing(
    before: Mapping[str, str], now: Mapping[str, str], *, same_rule: bool = True
) -> list[str]:
    """Return the names of the differing parts of two fingerprints.

    Fingerprints of different rules differ in the digests of equal code, so only the other parts
    are compared then.

    Examples
    --------
    >>> differing({"config": "a", "function f": "b"}, {"config": "c", "class G": "d"})
    ['class G (new)', 'config', 'function f (gone)']
    """
    both = {name for name in {*before, *now} if name.startswith(LABEL)}
    both |= {*before} & {*now}
    return [
        name + ("" if name in both else " (gone)" if name in before else " (new)")
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name) and (same_rule or name in _NO_CODE)
    ]


def is_outdated(spec: Mapping[str, Any]) -> bool:
    """Return whether a study's fingerprint was taken by another rule than `RULE`.

    Whether its code is that of today is unknown then, so its states are not used.

    Parameters
    ----------
    spec
        The description of the study in the database.
    """
    # Anyone may have written it: a description without a fingerprint has no states to use.
    return spec.get("fingerprint", "none") != "none" and rule_of(spec) != RULE


def rule_of(spec: Mapping[str, Any]) -> int:
    """Return the rule of a study's fingerprint; studies that name none are of rule 1."""
    return int(spec.get("fingerprint_rule", 1))


def _package_of(thing: object) -> str:
    """Return the package of a definition or module; empty for a constant."""
    if isinstance(thing, ModuleType):
        return thing.__name__.partition(".")[0]
    if isinstance(thing, type | FunctionType):
        return (thing.__module__ or "").partition(".")[0]
    return ""


def _data(trainer_class: type, config: Mapping[str, object]) -> object:
    describe: Callable[[Mapping[str, object]], object] | None
    describe = getattr(trainer_class, "fingerprint_data", None)
    if describe is None:
        return None
    value = describe(config)
    refuse(_json_problems(value, f"{trainer_class.__name__}.fingerprint_data(config)"))
    return value


def _json_problems(value: object, path: str) -> Iterator[str]:
    if value is None or type(value) in (bool, int, str):
        return
    if isinstance(value, float) and math.isfinite(value):
        return
    if type(value) in (list, tuple):
        for index, item in enumerate(value):  # type: ignore[arg-type, var-annotated]
            yield from _json_problems(item, f"{path}[{index}]")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                yield f"{path} must have names as keys, got {key!r}"
            yield from _json_problems(item, f"{path}[{key!r}]")
    else:
        yield (
            f"{path} must be a JSON value, got {shown(value)} ({type(value).__name__}); "
            f"{config_remedy(value)}"
        )


def _named(parts: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the parts by name; parts of equal names are numbered."""
    named: dict[str, str] = {}
    for name, part in parts:
        count = 2
        unique = name
        while unique in named:
            unique, count = f"{name} ({count})", count + 1
        named[unique] = part
    return named
