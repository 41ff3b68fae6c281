"""The filter of the table of trials: terms such as ``lr>0.01 state=COMPLETE adam``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from dasktune.errors import ConfigurationError, refuse, unknown

_TERM = re.compile(r"^(?P<name>[^<>=!]+)(?P<sign><=|>=|!=|==|=|<|>)(?P<text>.*)$")

_SIGNS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Term:
    """A condition on a row: on one column, or on any if `name` is None."""

    name: str | None
    sign: str
    text: str

    def holds(self, cells: Sequence[object], places: dict[str, int]) -> bool:
        """Return whether a row meets the condition."""
        if self.name is None:
            return any(self.text.lower() in str(cell).lower() for cell in cells)
        cell = cells[places[self.name]]
        if self.sign in _SIGNS:
            number = _number(cell)
            return number is not None and _SIGNS[self.sign](number, float(self.text))
        return _is_equal(cell, self.text) is (self.sign != "!=")


def parse_filter(text: str, columns: Collection[str]) -> tuple[Term, ...]:
    """Return the terms of a filter; a row must meet all of them.

    Parameters
    ----------
    text
        Terms with spaces between them: ``column<number`` (also <=, >, >=), ``column=value``,
        ``column!=value``, or a word that any column holds.
    columns
        The known columns.

    Raises
    ------
    ConfigurationError
        If a column is unknown, or no number is given where one is compared.

    Examples
    --------
    >>> parse_filter("lr>=0.1 adam", ["lr", "optimizer"])
    (Term(name='lr', sign='>=', text='0.1'), Term(name=None, sign='', text='adam'))
    """
    problems: list[str] = []
    terms: list[Term] = []
    for word in text.split():
        match = _TERM.match(word)
        if match is None:
            terms.append(Term(None, "", word))
            continue
        name, sign, given = match["name"], match["sign"], match["text"]
        if name not in columns:
            problems.append(unknown("column", name, columns))
        elif sign in _SIGNS and _number(given) is None:
            problems.append(f"{word}: a number must follow {sign}, got {given!r}")
        else:
            terms.append(Term(name, sign.replace("==", "="), given))
    refuse(problems)
    return tuple(terms)


def order_of(name: str, columns: Sequence[str]) -> int:
    """Return the place of the column to sort by.

    Raises
    ------
    ConfigurationError
        If there is no such column.
    """
    if name not in columns:
        raise ConfigurationError(unknown("column", name, columns))
    return columns.index(name)


def _number(cell: object) -> float | None:
    """Return a cell, or a text, as a number if it is one."""
    if isinstance(cell, bool) or not isinstance(cell, int | float | str):
        return None
    try:
        return float(cell)
    except ValueError:
        return None


def _is_equal(cell: object, text: str) -> bool:
    number = None if isinstance(cell, str) else _number(cell)
    wanted = _number(text)
    if number is not None and wanted is not None:
        return number == wanted
    return ("" if cell is None else str(cell)).lower() == text.lower()
