"""Pairs of small programs: which change of a program is another training, and which is not.

A program is a module with a trainer ``Net``; ``Net().train()`` returns a value. A place
``<<a||b>>`` reads ``a`` in the first program of a pair and ``b`` in the second.
"""

from __future__ import annotations

import re
from textwrap import dedent

from .functions import FUNCTIONS, REACHED
from .members import MEMBERS
from .process import PROCESS, UNCHANGED_PROCESS
from .unchanged import UNCHANGED as _UNCHANGED
from .values import VALUES

__all__ = ["CHANGED", "UNCHANGED", "Pair", "both"]

Pair = str | tuple[str, str]
"""A module, or its beginning and the value that ``Net().train()`` returns."""

_PLACE = re.compile(r"<<(.*?)\|\|(.*?)>>", re.DOTALL)


def both(pair: Pair) -> tuple[str, str]:
    """Return the two programs of a pair."""
    text, result = (pair, "") if isinstance(pair, str) else pair
    text = dedent(text)
    if result:
        text += f"\nclass Net:\n    def train(self): return {result}\n"
    assert _PLACE.search(text), text
    return _PLACE.sub(r"\1", text), _PLACE.sub(r"\2", text)


CHANGED: dict[str, Pair] = {
    **MEMBERS,
    **FUNCTIONS,
    **REACHED,
    **PROCESS,
    **{
        f"value: {name}": (f"{head}\nX = <<{first}||{second}>>\n", shown)
        for name, (head, first, second, shown) in VALUES.items()
    },
}
"""Changes after which a training gives another result; `UNCHANGED` gives the same."""

UNCHANGED: dict[str, Pair] = {**_UNCHANGED, **UNCHANGED_PROCESS}
"""Changes after which a training gives the same result."""
