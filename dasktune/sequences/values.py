"""Checks of the values and arguments of sequences: plain, finite, and of one type."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import pairwise

from dasktune._numbers import MOST, number_of
from dasktune.errors import ConfigurationError, shown
from dasktune.types import Value

_PLAIN = (int, float, bool, str, type(None))

BY_NAME = "a name as text, and look the value up by it"
"""What to give for a value that is not plain, for errors that end in "in the trainer"."""


def plain(value: object) -> Value:
    """Return `value` as a plain Python value.

    Numbers of other kinds are converted (`dasktune._numbers`), so that equal values compare
    equal whatever their source; ``-0.0`` becomes ``0.0`` for the same reason.

    Raises
    ------
    ConfigurationError
        If it is of another type than int, float, bool, str or None, is NaN or infinite, or is
        text with surrogates, which cannot be encoded.

    Examples
    --------
    >>> import numpy
    >>> plain(numpy.int64(64)), plain(numpy.float64(0.5)), plain("adam")
    (64, 0.5, 'adam')
    """
    if type(value) not in _PLAIN:
        value = converted(value)
    if type(value) is float:
        if not math.isfinite(value):
            raise ConfigurationError(f"a value must be finite, got {value!r}")
        return value or 0.0  # the same object, which a large study has often
    if type(value) is str and not value.isprintable() and any(map(_is_surrogate, value)):
        raise ConfigurationError(f"a value must have no surrogates, got {value!r}")
    if value is None or type(value) is int or type(value) is bool or type(value) is str:
        return value
    kind = type(value).__name__
    remedy = (
        f"its name {value.name!r}, and take {kind}[name]" if isinstance(value, Enum) else BY_NAME
    )
    raise ConfigurationError(
        f"a value must be an int, float, bool, str or None, got {shown(value)} ({kind}); give "
        f"{remedy} in the trainer"
    )


def converted(value: object) -> object:
    """Return the plain value that a number, a bool or a text of NumPy or torch is."""
    if (number := number_of(value)) is not None:
        return number
    item = None if isinstance(value, type) else getattr(value, "item", None)
    plainly = item() if callable(item) and getattr(value, "shape", None) == () else None
    return plainly if type(plainly) in (bool, str) else value


def _is_surrogate(letter: str) -> bool:
    return "\ud800" <= letter <= "\udfff"


def same(first: Value, second: Value) -> bool:
    """Return whether two plain values are equal by value *and* type.

    Examples
    --------
    >>> same(1, 1.0), same(1, True), same(0.0, -0.0)
    (False, False, True)
    """
    return type(first) is type(second) and first == second


def reads_as_number(value: object) -> bool:
    """Return whether a value is text in which a finite number is written.

    Examples
    --------
    >>> reads_as_number("1e-3"), reads_as_number("adam"), reads_as_number(0.1)
    (True, False, False)
    """
    try:
        return isinstance(value, str) and math.isfinite(float(value))
    except ValueError:
        return False


def number(name: str, value: object) -> int | float:
    """Return `value` as a finite int or float.

    Raises
    ------
    ConfigurationError
        If it is anything else, for example a bool.
    """
    checked = number_of(value)
    if checked is None or not (isinstance(checked, int) or math.isfinite(checked)):
        raise ConfigurationError(f"{name} must be a finite number, got {shown(value)}")
    return checked + 0  # -0.0 becomes 0.0


def real(name: str, value: object) -> float:
    """Return `value` as a finite float.

    Raises
    ------
    ConfigurationError
        If it is no number or too large for a float.
    """
    try:
        return float(number(name, value))
    except OverflowError:
        raise ConfigurationError(f"{name} must fit into a float, got {shown(value)}") from None


def whole(name: str, value: object, *, at_least: int, at_most: int | None = MOST) -> int:
    """Return `value` as an int from `at_least` to `at_most`.

    Raises
    ------
    ConfigurationError
        If it is too small or too large, or no int: for example a bool.
    """
    checked = number_of(value)
    if not isinstance(checked, int):
        raise ConfigurationError(f"{name} must be an int, got {shown(value)}")
    if checked < at_least:
        raise ConfigurationError(f"{name} must be >= {at_least}, got {shown(value)}")
    if at_most is not None and checked > at_most:
        raise ConfigurationError(f"{name} must be <= {at_most:,}, got {shown(value)}")
    return checked


def rising(name: str, steps: Iterable[object]) -> tuple[int, ...]:
    """Return `steps` as a tuple of strictly increasing steps from 1 on.

    Raises
    ------
    ConfigurationError
        If they do not increase; the message shows them.
    """
    if isinstance(steps, str | bytes) or not isinstance(steps, Iterable):
        raise ConfigurationError(f"{name} must be a list of steps, got {steps!r}")
    checked = tuple(whole(f"each of {name}", step, at_least=1) for step in steps)
    if any(later <= earlier for earlier, later in pairwise(checked)):
        raise ConfigurationError(f"{name} must be strictly increasing, got {list(checked)}")
    return checked


class Arguments:
    """Checks the arguments of a constructor, and collects all problems for one error.

    Each method returns the checked argument. If it is wrong, the method keeps the problem for
    `refuse` and returns a harmless value.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self.problems: list[str] = []

    def add(self, problem: str) -> None:
        """Keep a problem unless it is known."""
        text = f"{self._owner}: {problem}"
        if text not in self.problems:
            self.problems.append(text)

    def number(self, name: str, value: object) -> int | float:
        """Check with `number`."""
        try:
            return number(name, value)
        except ConfigurationError as error:
            self._keep(error)
            return 0

    def real(self, name: str, value: object) -> float:
        """Check with `real`."""
        try:
            return real(name, value)
        except ConfigurationError as error:
            self._keep(error)
            return 0.0

    def whole(
        self, name: str, value: object, *, at_least: int = 1, at_most: int | None = MOST
    ) -> int:
        """Check with `whole`."""
        try:
            return whole(name, value, at_least=at_least, at_most=at_most)
        except ConfigurationError as error:
            self._keep(error)
            return at_least

    def rising(self, name: str, steps: Iterable[object]) -> tuple[int, ...]:
        """Check with `rising`."""
        try:
            return rising(name, steps)
        except ConfigurationError as error:
            self._keep(error)
            return ()

    def plain(self, name: str, values: Iterable[object]) -> Iterator[Value]:
        """Check each of `values` with `plain`."""
        for position, value in enumerate(values):
            try:
                yield plain(value)
            except ConfigurationError as error:
                self.add(f"{name}[{position}]: {error}")

    def refuse(self) -> None:
        """Raise an error with all problems, if there are any."""
        if self.problems:
            raise ConfigurationError(*self.problems)

    def _keep(self, error: ConfigurationError) -> None:
        for problem in error.problems:
            self.add(problem)
