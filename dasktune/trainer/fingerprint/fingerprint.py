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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

from dasktune.errors import refuse
from dasktune.trainer.fingerprint.data import json_digest
from dasktune.trainer.fingerprint.references import NOT_COVERED, Code

RULE = 2
"""Number of the rule by which fingerprints are taken; part of each digest."""

_NO_CODE = ("config", "data", "version")
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
    ignored = getattr(trainer_class, "ignored_config", ())
    kept = {key: value for key, value in config.items() if key not in ignored}
    refuse(_json_problems(kept, "config"))
    named = (trainer_class, *depends_on)
    code = Code(frozenset(_package_of(thing) for thing in named) - {""})
    roots = [code.add(thing) for thing in named]
    parts = [*sorted(code.parts), ("config", json_digest(kept))]
    parts.append(("version", str(getattr(trainer_class, "version", "1"))))
    if (data := _data(trainer_class, config)) is not None:
        parts.append(("data", json_digest(data)))
    return Fingerprint(
        digest=json_digest([f"rule {RULE}", roots, parts]),
        parts=_named((name, part) for name, part in parts if part != NOT_COVERED),
        gaps=code.gaps if data is not None else {**code.gaps, "data": _NO_DATA},
        packages=tuple(sorted(code.packages)),
    )


def code_parts(trainer_class: type) -> dict[str, str]:
    """Return the parts of a trainer's fingerprint that are of code, by name.

    Raises
    ------
    ConfigurationError
        If source cannot be read.
    """
    code = Code(frozenset({_package_of(trainer_class)} - {""}))
    code.add(trainer_class)
    return _named((name, part) for name, part in sorted(code.parts) if part != NOT_COVERED)


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
    return [
        name + ("" if name in before and name in now else " (gone)" if name in before else " (new)")
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
        yield f"{path} must be a JSON value, got {value!r} ({type(value).__name__})"


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
