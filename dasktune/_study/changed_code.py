"""Code that changes while a study is open: an edited cell, a reloaded module, another setting.

A study stores states under the fingerprint with which it was opened. If its trainer, or anything
to which the trainer refers, is another one when it is used, the states would be stored under a
fingerprint that is not theirs. So each use of a study looks whether its fingerprint still holds.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import is_
from types import FunctionType
from typing import Any

from dasktune._study.config import StudyConfig
from dasktune._study.run_warnings import warn_of_written_globals
from dasktune._words import listed
from dasktune.errors import ConfigurationError, refuse
from dasktune.trainer.base import problems_of
from dasktune.trainer.fingerprint.fingerprint import TakenFingerprint, differing, is_outdated
from dasktune.trainer.given import as_trainer


class OpenCode:
    """The code of an open study, and what has become of it.

    `computed` counts the fingerprints that were computed since the study was opened.
    """

    def __init__(self, config: StudyConfig, spec: Mapping[str, Any]) -> None:
        self._config, self._spec, self._opened = config, spec, config.taken
        given = () if config.trainer is None else (given_of(config.trainer), *config.depends_on)
        self._given = tuple(
            _GivenDefinition(thing=thing, is_named=_is_named(thing)) for thing in given
        )
        self._known: dict[tuple[int, ...], _KnownCode] = {}
        if config.trainer is not None and config.taken is not None:
            self._note(given, config.trainer, config.taken)
        self._warned_of: frozenset[str] = frozenset()
        self.computed = 0

    def problem(self) -> str | None:
        """Return the problem of a study whose code is not that with which it was opened."""
        if self._config.trainer is None or is_outdated(self._spec):
            return None  # a study of another rule does not train
        as_given = tuple(each.thing for each in self._given)
        as_named = tuple(each.now() for each in self._given)
        is_again = all(map(is_, as_given, as_named))
        for things in [as_given] if is_again else [as_given, as_named]:
            known = self._known.get(tuple(map(id, things)))
            if known is not None and self._config.holds(known.taken, known.trainer):
                continue
            try:
                trainer = _trainer_of(things[0], self._config.known_trainer)
                refuse(problems_of(trainer))
                now = self._config.take(trainer, things[1:])
            except ConfigurationError:
                if things is as_given:
                    raise
                continue  # what has the name is no trainer any more
            self.computed += 1
            if now.fingerprint.digest != self._spec["fingerprint"]:
                return self._changed(now)
            self._note(things, trainer, now)
        return None

    def refuse_change(self) -> None:
        """Refuse to train other code than that of the study; warn of new values of globals."""
        if (problem := self.problem()) is not None:
            raise ConfigurationError(problem)
        if written := self.written() - self._warned_of:
            self._warned_of |= written
            warn_of_written_globals(self._config.name, written)

    def written(self) -> frozenset[str]:
        """Return the globals whose values own code has changed in this process."""
        firsts = [known.taken.code.firsts.changed for known in self._known.values()]
        return frozenset(name for changed in firsts for _, name in changed)

    def _note(self, things: tuple[Any, ...], trainer: type, taken: TakenFingerprint) -> None:
        known = _KnownCode(things=things, trainer=trainer, taken=taken)
        self._known[tuple(map(id, things))] = known

    def _changed(self, now: TakenFingerprint) -> str:
        if self._opened is not None:
            names = self._opened.changes(now)
        else:
            names = differing(self._spec.get("parts") or {}, now.fingerprint.parts)
        name = self._config.name
        return (
            f"study {name!r} must train the code with which it was opened; changed since then: "
            f"{listed(names or ['what the trainer refers to'])}. Run create_study again: with "
            "if_changed='new' it opens the version of the study that has the code of now"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _KnownCode:
    """Definitions with the fingerprint of the study, kept alive so that their ids stay theirs."""

    things: tuple[Any, ...]
    trainer: type
    taken: TakenFingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class _GivenDefinition:
    """A definition that `create_study` was given, and whether its module had it by its name."""

    thing: Any
    is_named: bool

    def now(self) -> Any:
        """Return the definition that has its name now."""
        now = _named_now(self.thing) if self.is_named else None
        return self.thing if now is None else now


def given_of(trainer: type) -> Any:
    """Return the definition of the user behind a trainer: a class, a function or an objective."""
    for kind, name in (("objective", "ObjectiveTrainer"), ("function", "FunctionTrainer")):
        if _is_made(trainer, kind, name):
            return getattr(trainer, kind)
    return trainer


def _is_named(thing: Any) -> bool:
    return isinstance(thing, type | FunctionType) and _named_now(thing) is thing


def _named_now(given: Any) -> Any:
    """Return the object that has the name of a definition now, without dasktune's wrapper."""
    try:
        names = given.__qualname__.split(".")
        now: Any = reduce(getattr, names, sys.modules.get(given.__module__))
    except AttributeError:
        return None
    made = getattr(now, "_dasktune_trainer", None)  # of `dasktune.from_optuna`
    return now if made is None else given_of(made)


def _trainer_of(given: Any, opened: type) -> Any:
    """Return the trainer of a definition that is in place of that of an opened trainer."""
    if given_of(opened) is given:
        return opened
    if not _is_made(opened, "objective", "ObjectiveTrainer"):
        return as_trainer(given)
    from dasktune.trainer.objective import from_optuna

    return as_trainer(from_optuna(given, ends_early=getattr(opened, "ends_early", False)))


def _is_made(trainer: type, module: str, name: str) -> bool:
    """Return whether a trainer is a subclass of a class whose module loads torch."""
    loaded = sys.modules.get(f"dasktune.trainer.{module}")
    return loaded is not None and issubclass(trainer, getattr(loaded, name))
