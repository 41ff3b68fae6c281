"""The numbers that users give: scalars of Python, NumPy, torch and JAX, fractions and decimals.

All checks of numbers use this module, so that each place takes and refuses the same.
"""

from __future__ import annotations

import math
import operator
from enum import Enum
from numbers import Integral
from typing import Any, Final, SupportsFloat

from dasktune.errors import shown

MOST: Final = 2**62
"""The largest count: of steps, trials and the like. A database has 63 bits for each."""


def number_of(value: object) -> int | float | None:
    """Return a number as an int or a float, infinite and NaN, too; None for anything else.

    Anything else is also a bool, a text, an array that has a dimension, and a decimal that is too
    large for a float. An int may be of any size.

    Examples
    --------
    >>> import numpy
    >>> from fractions import Fraction
    >>> [number_of(value) for value in (numpy.int64(3), numpy.array(0.5), Fraction(1, 4))]
    [3, 0.5, 0.25]
    >>> [number_of(value) for value in (True, "0.5", numpy.array([0.5]), 1j, None)]
    [None, None, None, None, None]
    """
    if type(value) is int or type(value) is float:
        return value
    scalar = _scalar(value)
    return None if isinstance(scalar, bool) else scalar


def real_of(value: object) -> float:
    """Return a number as a float; NaN if it is no number, or an int too large for a float.

    No comparison with NaN holds, so that ``0 < real_of(value) < math.inf`` is a whole check.

    Examples
    --------
    >>> real_of(3), real_of("3"), real_of(10**400)
    (3.0, nan, nan)
    """
    number = _as_float(number_of(value))
    return math.nan if number is None else number


def whole_of(value: object, *, least: int | None = 1, most: int | None = MOST) -> int | None:
    """Return an int from `least` to `most`, such as one of NumPy; None if it is anything else.

    Examples
    --------
    >>> whole_of(3), whole_of(3.0), whole_of(0), whole_of(2**63), whole_of(True)
    (3, None, None, None, None)
    """
    number = number_of(value)
    if not isinstance(number, int) or (least is not None and number < least):
        return None
    return None if most is not None and number > most else number


def measured(value: object) -> float | None:
    """Return a metric as a float; None for anything but a number that fits into a float.

    A bool that was measured counts 0 or 1.

    Examples
    --------
    >>> measured(True), measured(float("nan")), measured("3"), measured(10**400)
    (1.0, nan, None, None)
    """
    return value if type(value) is float else _as_float(_scalar(value))


def not_measured(value: object) -> str:
    """Return the words for a value that cannot be a metric: what it must be, and what it is.

    Examples
    --------
    >>> not_measured("0.5")
    "number, got '0.5'"
    """
    fits = "" if number_of(value) is None else " that fits into a float"
    shape = tuple(getattr(value, "shape", ()))
    return f"number{fits}, got {f'an array of shape {shape}' if shape else shown(value)}"


def make_plain(owner: object, *names: str) -> None:
    """Make the numbers in these attributes of a frozen value ints and floats; leave the others."""
    for name in names:
        if (number := number_of(getattr(owner, name))) is not None:
            object.__setattr__(owner, name, number)


def _scalar(value: Any) -> bool | int | float | None:
    """Return the scalar of Python that a number or bool is; None if it is neither."""
    if isinstance(value, str | Enum) or not isinstance(value, SupportsFloat):
        return None
    # Dates and time spans of NumPy are ints whose unit would be lost.
    if getattr(getattr(value, "dtype", None), "kind", "") in ("M", "m"):
        return None
    try:
        if len(getattr(value, "shape", ())) > 0 or getattr(value, "mask", False):
            return None
        item = value.item() if hasattr(value, "item") else value
        if isinstance(item, bool | Integral):
            return item if isinstance(item, bool) else operator.index(item)
        if isinstance(item, str | bytes):
            return None
        number = float(item)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return None  # but an error of a GPU must stay one: it spoils the process
    # A decimal or a long double beyond the floats becomes infinite.
    return None if math.isinf(number) and item != number else number


def _as_float(number: float | None) -> float | None:
    try:
        return None if number is None else float(number)
    except OverflowError:
        return None
