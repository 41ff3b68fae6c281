"""What may go from a checkpoint store that has a byte budget: what is worth least per byte.

A checkpoint is a cache of work. It is worth the seconds that it takes to train it again,
from the nearest state before it that stays, times the chance that it is asked for. States on
one path depend on each other: without the one before, training starts further up, and whoever
would have asked for it asks there. So the choice is made one state at a time, each time with
what the others are worth by then.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from dasktune.errors import ConfigurationError

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgtp]?i?b?)\s*", re.IGNORECASE)
_UNITS = ("", "k", "m", "g", "t", "p")

_BEST = re.compile(r"best:([1-9]\d*)")


GRACE = 3600.0
"""Seconds for which nothing goes whose place and use are not known."""

STRANGER = 0.02
"""Chance that a state is asked for of which nothing is known but that it was just written."""

HALF_LIFE = 7 * 86400.0
"""Seconds in which that chance halves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A state in a store, as far as it matters to who must make room.

    Parameters
    ----------
    key
        Its key.
    nbytes
        What removing it frees.
    seconds
        Training time up to it: from `above`, or from nothing if that is None.
    chance
        Probability that it is asked for again, by what no stored state further on serves.
    above
        Key of the nearest state before it on its path that is stored, too.
    stays
        Whether it must not go.
    """

    key: str
    nbytes: int
    seconds: float
    chance: float
    above: str | None = None
    stays: bool = False

    @property
    def price(self) -> float:
        """Expected seconds of training that a byte of it saves."""
        return self.seconds * self.chance / max(self.nbytes, 1)


def evictions(states: Iterable[State], excess: int) -> list[State]:
    """Return the states that go so that at least `excess` bytes are freed, in this order.

    The cheapest one goes first, at the price that it has then: once a state has gone, those
    that follow it on its path cost its training, too, and the one before it may be asked for
    in its place. It is all that may go if that is not enough.

    Parameters
    ----------
    states
        All that is stored; a state's `above` must be among them.
    excess
        Bytes.

    Examples
    --------
    >>> trunk = State(key="t", nbytes=1, seconds=50, chance=0.1)
    >>> leaf = State(key="l", nbytes=1, seconds=10, chance=0.4, above="t")
    >>> [(gone.key, gone.price) for gone in evictions([trunk, leaf], 2)]
    [('l', 4.0), ('t', 23.0)]
    """
    now = {one.key: one for one in states}
    below = defaultdict(set)
    for one in now.values():
        if one.above is not None:
            below[one.above].add(one.key)
    heap = [(one.price, one.key) for one in now.values() if not one.stays]
    heapify(heap)
    gone: list[State] = []
    while heap and excess > 0:
        price, key = heappop(heap)
        state = now[key]
        if state.price != price:
            # Prices only rise, so an entry that is too low is merely early.
            heappush(heap, (state.price, key))
            continue
        gone.append(now.pop(key))
        excess -= state.nbytes
        _pass_on(state, now, below)
    return gone


def _pass_on(gone: State, now: dict[str, State], below: dict[str, set[str]]) -> None:
    """Let those next to a state on its path do without it."""
    followers = below.pop(gone.key, set())
    for key in followers:
        one = now[key]
        now[key] = replace(one, seconds=one.seconds + gone.seconds, above=gone.above)
    if gone.above is not None:
        above = now[gone.above]
        chance = 1 - (1 - above.chance) * (1 - gone.chance)
        now[gone.above] = replace(above, chance=chance)
        below[gone.above] |= followers
        below[gone.above].discard(gone.key)


def unknown_state(key: str, nbytes: int, *, seconds: float, age: float, grace: float) -> State:
    """Return what a state of an unknown place is worth: the less, the longer it was not used.

    Parameters
    ----------
    key, nbytes
        As of a `State`.
    seconds
        What its training took.
    age
        Seconds since it was written or used.
    grace
        Age below which it stays: another driver may be about to load it.
    """
    chance = STRANGER * 0.5 ** (max(age, 0.0) / HALF_LIFE)
    return State(key=key, nbytes=nbytes, seconds=seconds, chance=chance, stays=age < grace)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Whose last states never go.

    Parameters
    ----------
    best
        Those of so many trials with the best values; of all trials if None.
    """

    best: int | None

    @classmethod
    def parse(cls, text: object) -> Keep:
        """Return what ``best:3``, ``all`` or ``none`` say.

        Raises
        ------
        ConfigurationError
            If it is none of them.

        Examples
        --------
        >>> Keep.parse("best:3")
        Keep(best=3)
        """
        if text in ("all", "none"):
            return cls(best=None if text == "all" else 0)
        found = _BEST.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise ConfigurationError(
                f"keep must be 'best:N' with N >= 1, 'all' or 'none', got {text!r}"
            )
        return cls(best=int(found[1]))

    def __str__(self) -> str:
        return {None: "all", 0: "none"}.get(self.best, f"best:{self.best}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How much a store may hold, and what stays in any case.

    Parameters
    ----------
    budget
        Bytes of all checkpoints in the store, whosever they are.
    keep
        Whose last states never go.
    grace
        See `unknown_state`.
    """

    budget: int
    keep: Keep
    grace: float = GRACE


def bytes_of(size: object, name: str = "budget") -> int:
    """Return the bytes of a size such as ``20 GB``, ``1.5 GiB`` or a number of bytes.

    ``kB``, ``MB``, ``GB``, ``TB`` and ``PB`` are powers of 1000, ``KiB``, ``MiB`` and so on
    powers of 1024; small and large letters are the same.

    Raises
    ------
    ConfigurationError
        If it is no size, or less than one byte.

    Examples
    --------
    >>> bytes_of("1.5 GiB"), bytes_of("20 GB"), bytes_of(4096)
    (1610612736, 20000000000, 4096)
    """
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    nbytes = 0
    if found is not None:
        unit = found[2].lower().removesuffix("b")
        base = 1024 if unit.endswith("i") else 1000
        if unit != "i":
            nbytes = int(float(found[1]) * base ** _UNITS.index(unit.removesuffix("i")))
    elif isinstance(size, int) and not isinstance(size, bool):
        nbytes = size
    if nbytes < 1:
        raise ConfigurationError(
            f"{name} must be a size such as '20 GB', '500 MiB' or a number of bytes >= 1, "
            f"got {size!r}"
        )
    return nbytes


def size_text(nbytes: float) -> str:
    """Return a number of bytes as people read it.

    Examples
    --------
    >>> size_text(2_700_000_000), size_text(512), size_text(999_700)
    ('2.7 GB', '512 B', '1 MB')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(nbytes) < 999.5:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} PB"


def retention_problems(budget: object, keep: object) -> list[str]:
    """Return what is wrong with a budget, which may be None, and with what is to be kept."""
    found: list[str] = []
    for parse, given in ((bytes_of, 1 if budget is None else budget), (Keep.parse, keep)):
        try:
            parse(given)
        except ConfigurationError as error:
            found += error.problems
    return found
