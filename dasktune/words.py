"""Words of messages: amounts with their nouns."""

from __future__ import annotations


def counted(amount: float, noun: str) -> str:
    """Return an amount with its noun in singular or plural, and with a decimal only if it has one.

    Examples
    --------
    >>> counted(1, "trial"), counted(1200, "step"), counted(2, "branch"), counted(7.5, "step")
    ('1 trial', '1,200 steps', '2 branches', '7.5 steps')
    """
    ending = "" if amount == 1 else "es" if noun.endswith(("ch", "s", "x")) else "s"
    return f"{amount:,.1f}".removesuffix(".0") + f" {noun}{ending}"
