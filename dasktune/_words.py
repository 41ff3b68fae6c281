"""Words of messages: amounts with their nouns, and lists."""

from __future__ import annotations

from collections.abc import Iterable


def counted(amount: float, noun: str) -> str:
    """Return an amount with its noun in singular or plural, and with a decimal only if it has one.

    Examples
    --------
    >>> counted(1, "trial"), counted(1200, "step"), counted(2, "branch"), counted(7.5, "step")
    ('1 trial', '1,200 steps', '2 branches', '7.5 steps')
    >>> counted(2, "study"), counted(1, "study"), counted(3, "day")
    ('2 studies', '1 study', '3 days')
    >>> counted(1.04, "step")
    '1 step'
    """
    # An integer, such as the size of a space, may be too large for a float.
    text = f"{amount:,}" if isinstance(amount, int) else f"{amount:,.1f}".removesuffix(".0")
    if text == "1":
        return f"{text} {noun}"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{text} {noun[:-1]}ies"
    return f"{text} {noun}{'es' if noun.endswith(('ch', 's', 'x')) else 's'}"


def listed(items: Iterable[object]) -> str:
    """Return items in a row, the last after "and".

    Examples
    --------
    >>> listed([2]), listed([2, 3]), listed([2, 3, 5])
    ('2', '2 and 3', '2, 3 and 5')
    """
    *others, last = map(str, items)
    return f"{', '.join(others)} and {last}" if others else last
