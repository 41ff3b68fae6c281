"""Words of messages: amounts with their nouns, and lists."""

from __future__ import annotations

from collections.abc import Iterable


def counted(amount: float, noun: str) -> str:
    """Return an amount with its noun in singular or plural, and with a decimal only if it has one.

    Examples
    --------
    >>> counted(1, "trial"), counted(1200, "step"), counted(2, "branch"), counted(7.5, "step")
    ('1 trial', '1,200 steps', '2 branches', '7.5 steps')
    >>> counted(1.04, "step")
    '1 step'
    """
    # An integer, such as the size of a space, may be too large for a float.
    text = f"{amount:,}" if isinstance(amount, int) else f"{amount:,.1f}".removesuffix(".0")
    ending = "" if text == "1" else "es" if noun.endswith(("ch", "s", "x")) else "s"
    return f"{text} {noun}{ending}"


def listed(items: Iterable[object]) -> str:
    """Return items in a row, the last after "and".

    Examples
    --------
    >>> listed([2]), listed([2, 3]), listed([2, 3, 5])
    ('2', '2 and 3', '2, 3 and 5')
    """
    *others, last = map(str, items)
    return f"{', '.join(others)} and {last}" if others else last
