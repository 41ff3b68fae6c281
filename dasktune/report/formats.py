"""Texts of numbers, durations and plurals."""

from __future__ import annotations

import math


def number(value: object) -> str:
    """Return a short text of a value, exact if that is short.

    Examples
    --------
    >>> number(1234567), number(0.1), number(0.30000000000000004), number(1.5e-7)
    ('1,234,567', '0.1', '0.3', '1.5e-07')
    >>> number(None), number(True), number("adam")
    ('—', 'True', 'adam')
    """
    if value is None:
        return "—"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.5g}" if math.isfinite(value) else str(value)


def printable(text: str) -> str:
    r"""Return a text with escaped control characters, harmless for terminals.

    Examples
    --------
    >>> print(printable("red: \x1b[31m, left: \u202e, ünï"))
    red: \x1b[31m, left: \u202e, ünï
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def duration(seconds: float) -> str:
    """Return a time span in its two largest units.

    Examples
    --------
    >>> duration(0.0123), duration(4.21), duration(75), duration(7325), duration(200000)
    ('12 ms', '4.2 s', '1 min 15 s', '2 h 2 min', '2 d 7 h')
    """
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, part, rest in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part} {rest}"
    return f"{whole // 60} min {whole % 60} s"


def percent(part: float, whole: float) -> str:
    """Return a part as a percentage; 0% and 100% only where they are exact.

    Examples
    --------
    >>> percent(41, 100), percent(1, 1000), percent(999, 1000), percent(3, 0)
    ('41%', '<1%', '>99%', '—')
    """
    if not whole:
        return "—"
    share = round(100 * part / whole)
    if share == 0 and part:
        return "<1%"
    return ">99%" if share == 100 and part < whole else f"{share}%"
