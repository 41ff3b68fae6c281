"""Values that no proof keeps: a trainer whose state lacks one cannot resume.

A proof keeps plain values that a state lacks, so that a resume is exact all the same. It keeps no
numbers of a class of one's own, since nobody knows what else belongs to their class, and nothing
that lies in a slot.
"""

from __future__ import annotations

from typing import Any


class _Number:
    """A number whose sums, differences, products and quotients are of these classes, too."""

    def plain(self) -> Any:
        """Return the number as one of Python."""
        raise NotImplementedError

    def __add__(self, other: Any) -> Any:
        return _number(self.plain() + other)

    def __radd__(self, other: Any) -> Any:
        return _number(other + self.plain())

    def __sub__(self, other: Any) -> Any:
        return _number(self.plain() - other)

    def __rsub__(self, other: Any) -> Any:
        return _number(other - self.plain())

    def __mul__(self, other: Any) -> Any:
        return _number(self.plain() * other)

    def __rmul__(self, other: Any) -> Any:
        return _number(other * self.plain())

    def __truediv__(self, other: Any) -> Any:
        return _number(self.plain() / other)

    def __rtruediv__(self, other: Any) -> Any:
        return _number(other / self.plain())


class Tally(_Number, int):
    """A whole number that no proof keeps; messages show it as ``Tally 2``.

    A plain float that is multiplied by one gives a plain float: Python asks the float first.
    """

    def plain(self) -> int:
        """Return the number as one of Python."""
        return int(self)


class Amount(_Number, float):
    """A number that no proof keeps; messages show it as ``Amount 0.5``."""

    def plain(self) -> float:
        """Return the number as one of Python."""
        return float(self)


class Slot:
    """Holds a value where no proof keeps it, in a slot.

    Parameters
    ----------
    value
        An array, a random generator, or anything else.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def _number(value: Any) -> Any:
    """Return a number of these classes; arrays stay as they are."""
    if isinstance(value, int):
        return Tally(value)
    return Amount(value) if isinstance(value, float) else value
