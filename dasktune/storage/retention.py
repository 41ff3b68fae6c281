"""Retention: the order in which states leave a checkpoint store with a byte budget.

A checkpoint is a cache of work. Its value is the time to train it again, from the nearest
stored state before it, times the probability that it is requested. The values of states on one
path depend on each other: without an earlier state, training starts further back and requests
go there. So states are chosen one at a time, with the values at that moment.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from dasktune._numbers import whole_of
from dasktune.errors import ConfigurationError, shown

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgtp]?i?b?)\s*", re.IGNORECASE)
_UNITS = ("", "k", "m", "g", "t", "p")

_BEST = re.compile(r"best:([1-9]\d*)")

GRACE = 3600.0
"""Seconds for which a state outside all known plans is kept."""

MOST_BYTES = 10**18
"""The largest budget: no store is as large."""

UNKNOWN_CHANCE = 0.02
"""Probability that a new state outside all known plans is requested."""

HALF_LIFE = 7 * 86400.0
"""Seconds in which that probability halves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The value of a stored state, for retention; it must be kept if it `stays`."""

    key: str
    nbytes: int
    """Bytes that its eviction frees."""
    seconds: float
    """Training time from the state `above`, or from step 0 if that is None."""
    chance: float
    """Probability of a request that no later stored state serves."""
    above: str | None = None
    """Key of the nearest stored state before it on its path."""
    stays: bool = False

    @property
    def price(self) -> float:
        """Expected seconds of training that a byte of it saves."""
        return self.seconds * self.chance / max(self.nbytes, 1)


def evictions(states: Iterable[State], excess: int) -> list[State]:
    """Return the states to evict, in this order, to free at least `excess` bytes.

    The state of the lowest price is next, at the price it has then: an eviction adds its
    training time to the states that follow it on its path, and its requests to the state before
    it. If the states that may go do not free enough, all of them are returned. A state's `above`
    must be among the states.

    Examples
    --------
    >>> trunk = State(key="t", nbytes=1, seconds=50, chance=0.1)
    >>> leaf = State(key="l", nbytes=1, seconds=10, chance=0.4, above="t")
    >>> [(state.key, state.price) for state in evictions([trunk, leaf], 2)]
    [('l', 4.0), ('t', 23.0)]
    """
    now = {state.key: state for state in states}
    below = defaultdict(set)
    for state in now.values():
        if state.above is not None:
            below[state.above].add(state.key)
    heap = [(state.price, state.key) for state in now.values() if not state.stays]
    heapify(heap)
    evicted: list[State] = []
    while heap and excess > 0:
        price, key = heappop(heap)
        state = now[key]
        if state.price != price:
            # Prices only rise, so a state with an outdated price goes back into the heap.
            heappush(heap, (state.price, key))
            continue
        evicted.append(now.pop(key))
        excess -= state.nbytes
        _pass_on(state, now, below)
    return evicted


def _pass_on(evicted: State, now: dict[str, State], below: dict[str, set[str]]) -> None:
    """Update the neighbours of an evicted state on its path."""
    followers = below.pop(evicted.key, set())
    for key in followers:
        state = now[key]
        now[key] = replace(state, seconds=state.seconds + evicted.seconds, above=evicted.above)
    if evicted.above is not None:
        above = now[evicted.above]
        chance = 1 - (1 - above.chance) * (1 - evicted.chance)
        now[evicted.above] = replace(above, chance=chance)
        below[evicted.above] |= followers
        below[evicted.above].discard(evicted.key)


def unknown_state(key: str, nbytes: int, *, seconds: float, age: float, grace: float) -> State:
    """Return a state that is in no known plan; its value falls with the time since its use.

    It stays up to an age of `grace` seconds: another driver may be about to load it.
    """
    chance = UNKNOWN_CHANCE * 0.5 ** (max(age, 0.0) / HALF_LIFE)
    return State(key=key, nbytes=nbytes, seconds=seconds, chance=chance, stays=age < grace)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """The trials whose last states are never evicted: so many of the best, or all if None."""

    best: int | None

    @classmethod
    def parse(cls, text: object) -> Keep:
        """Return the meaning of ``best:3``, ``all`` or ``none``.

        Raises
        ------
        ConfigurationError
            If the text is none of these.

        Examples
        --------
        >>> Keep.parse("best:3")
        Keep(best=3)
        """
        if text in ("all", "none"):
            return cls(best=None if text == "all" else 0)
        match = _BEST.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ConfigurationError(
                f"keep must be 'best:N' with N >= 1, 'all' or 'none', got {text!r}"
            )
        return cls(best=int(match[1]))

    def __str__(self) -> str:
        return {None: "all", 0: "none"}.get(self.best, f"best:{self.best}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The byte budget of a store, other studies included, and the states that stay in any case.

    `grace` is that of `unknown_state`.
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
        If it is not a size of at least one byte, or above `MOST_BYTES`.

    Examples
    --------
    >>> bytes_of("1.5 GiB"), bytes_of("20 GB"), bytes_of(4096)
    (1610612736, 20000000000, 4096)
    """
    match = _SIZE.fullmatch(size) if isinstance(size, str) else None
    nbytes = 0.0
    if match is not None:
        unit = match[2].lower().removesuffix("b")
        base = 1024 if unit.endswith("i") else 1000
        if unit != "i":
            nbytes = float(match[1]) * base ** _UNITS.index(unit.removesuffix("i"))
    else:
        nbytes = whole_of(size) or 0
    if not 1 <= nbytes <= MOST_BYTES:
        raise ConfigurationError(
            f"{name} must be a size such as '20 GB', '500 MiB' or a number of bytes >= 1, and at "
            f"most {size_text(MOST_BYTES)}, got {shown(size)}"
        )
    return int(nbytes)


def size_text(nbytes: float) -> str:
    """Return a number of bytes as a short text.

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
    """Return the problems of the arguments `budget`, which may be None, and `keep`."""
    problems: list[str] = []
    for parse, given in ((bytes_of, 1 if budget is None else budget), (Keep.parse, keep)):
        try:
            parse(given)
        except ConfigurationError as error:
            problems += error.problems
    return problems
