"""A kind of trainer, and the outcome that a merged study of it must have.

The expectation is written down with the trainer, before dasktune can meet it: a kind may not be
bent to what a check happens to see. A kind is no decorator of its trainer, because the fingerprint
of a trainer covers its decorators.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import Any


class Expected(Enum):
    """The outcomes that a merged study of a kind may have."""

    EXACT = "exact"
    REFUSED = "refused"
    STOPPED = "stopped"
    REFUSED_OR_STOPPED = "refused or stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A trainer that people write, in its smallest form.

    Parameters
    ----------
    name
        Name of the trainer.
    trainer
        The class or function.
    expected
        The outcome that its merged study must have.
    culprit
        Text that the first named path or variable must contain; None for a kind that is exact.
    is_correct
        Whether nothing is missing in its state: a refusal is a false alarm.
    """

    name: str
    trainer: Any
    expected: Expected
    culprit: str | None = None
    is_correct: bool = False

    @property
    def place(self) -> tuple[str, str]:
        """The module and the name under which another process finds the trainer."""
        return str(self.trainer.__module__), self.name

    @property
    def theme(self) -> str:
        """The module in which it is defined."""
        return str(self.trainer.__module__).rpartition(".")[2]

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        return (self.trainer.__doc__ or "").strip().partition("\n")[0]


def found_at(place: tuple[str, str]) -> Any:
    """Return the trainer at a place; imports its module and no other kinds."""
    module, name = place
    return getattr(import_module(module), name)


def exact(trainer: Any) -> Kind:
    """Return a kind that must give what each trial alone gives."""
    return _kind(trainer, Expected.EXACT)


def correct(trainer: Any) -> Kind:
    """Return a kind whose state is whole although it looks suspicious: no false alarm."""
    return _kind(trainer, Expected.EXACT, is_correct=True)


def refused(trainer: Any, culprit: str) -> Kind:
    """Return a kind that must be refused before a result is used, by this name."""
    return _kind(trainer, Expected.REFUSED, culprit)


def stopped(trainer: Any, culprit: str) -> Kind:
    """Return a kind that must be stopped at a save or a resume, by this name."""
    return _kind(trainer, Expected.STOPPED, culprit)


def named(trainer: Any, culprit: str) -> Kind:
    """Return a kind that must be refused, or stopped, by this name."""
    return _kind(trainer, Expected.REFUSED_OR_STOPPED, culprit)


def _kind(
    trainer: Any, expected: Expected, culprit: str | None = None, *, is_correct: bool = False
) -> Kind:
    return Kind(
        name=trainer.__name__,
        trainer=trainer,
        expected=expected,
        culprit=culprit,
        is_correct=is_correct,
    )
