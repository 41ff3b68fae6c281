"""The algebra of sequences: values, cuts (``seq[:n]``, ``seq[n:]``) and joins (``a >> b``).

A sequence is a value: sequences with the same text are equal, and have one hash and one JSON
document. The text is the `repr`, and evaluating it gives the sequence again.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import ClassVar

from dasktune._lazy import method_of
from dasktune.errors import ConfigurationError, shown
from dasktune.sequences.values import plain, whole
from dasktune.types import Step, Value

_BARS = "▁▂▃▄▅▆▇█"

MOST_VALUES = 10**8
"""Values that `Sequence.values` returns at once."""


def _without_negative_zeros(values: list[Value]) -> list[Value]:
    """Return the values with 0.0 in place of -0.0."""
    return [value + 0.0 if type(value) is float else value for value in values]


class Sequence(ABC):
    """A hyper-parameter as a pure function of the step.

    A call gives the value at one step; `values` gives the values at many, computed by the same
    scalar formula. Steps count from 0; a step beyond the end is an error.
    """

    __slots__ = ("_text",)

    positional: ClassVar[int] = 1
    """Number of arguments that `repr` writes without their names."""

    listed: ClassVar[frozenset[str]] = frozenset()
    """The names of arguments that are lists."""

    @property
    def end(self) -> int | None:
        """Number of its steps; None for an endless sequence."""
        return None

    @abstractmethod
    def formula(self, step: Step) -> Value:
        """Return the value at `step`; does not check the step or the value."""

    @abstractmethod
    def constant_until(self, step: Step) -> int | None:
        """Return the first later step at which the value may differ, or None.

        The answer comes from the form of the sequence, not from computed values, and
        never lies beyond `end`.
        """

    def boundaries(self, start: Step, stop: Step) -> tuple[Step, ...]:
        """Return the steps strictly between `start` and `stop` at which a new piece begins.

        These are the changes of piecewise constant values and the joints of ``>>``. Trials are
        likely to part there. A value that changes at every step has no pieces.
        """
        return ()

    def leaf_at(self, step: Step) -> tuple[Sequence, Step, int | None]:
        """Return the family member that gives the value at `step`, its first step, and its end.

        The first step is negative if the first steps of the member were cut off.
        """
        return self, 0, self.end

    def leaves(self) -> tuple[Sequence, ...]:
        """Return the joined pieces in order; a single sequence is its only piece."""
        return (self,)

    def arguments(self) -> dict[str, object]:
        """Return the constructor's arguments by name."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.init}  # type: ignore[arg-type]

    def __call__(self, step: Step) -> Value:
        """Return the value at `step`.

        Raises
        ------
        ConfigurationError
            If the step is no int, negative or beyond the end, or if the value overflows.
        """
        step = self._checked(step)
        try:
            value = self.formula(step)
        except OverflowError:
            value = math.inf
        if type(value) is float and not math.isfinite(value):
            raise ConfigurationError(f"{self!r} overflows at step {step}")
        # Keys hold 0.0 for -0.0: the trainer must see what its key says.
        return value + 0.0 if type(value) is float else value

    def values(self, start: Step, stop: Step) -> list[Value]:
        """Return the values at the steps from `start` up to, not including, `stop`.

        ``values(start, stop)[i]`` equals ``self(start + i)`` bit for bit.

        Raises
        ------
        ConfigurationError
            As for a call; or if there are more than `MOST_VALUES`.
        """
        start = whole("start", start, at_least=0, at_most=None)
        stop = whole("stop", stop, at_least=0, at_most=None)
        if stop - start > MOST_VALUES:
            raise ConfigurationError(
                f"values must be asked for at most {MOST_VALUES:,} steps at a time, got "
                f"{shown(stop - start)}"
            )
        values: list[Value] = []
        step = start
        while step < stop:
            leaf, origin, end = self.leaf_at(self._checked(step))
            after = stop if end is None else min(end, stop)
            try:
                stretch = leaf._stretch(step - origin, after - origin)
                # A call gives 0.0 for -0.0; `in` finds both, much faster than a look at each.
                values += _without_negative_zeros(stretch) if 0.0 in stretch else stretch
            except OverflowError:
                values += map(self, range(step, after))  # raises, and names the step
            step = after
        return values

    def _stretch(self, start: Step, stop: Step) -> list[Value]:
        """Return the values of a family member at steps that it has.

        Raises
        ------
        OverflowError
            If a value overflows.
        """
        values: list[Value] = []
        step = start
        while step < stop:
            change = self.constant_until(step)
            after = stop if change is None else min(change, stop)
            values += [self(step)] * (after - step)
            step = after
        return values

    def __rshift__(self, other: object) -> Sequence:
        """Return the sequence that continues with `other`, from its step 0, after the end of this.

        Raises
        ------
        ConfigurationError
            If this sequence has no end.
        """
        return Joined((*self.leaves(), *as_sequence(other).leaves()))

    def __getitem__(self, key: slice) -> Sequence:
        """Return the first `n` steps, ``self[:n]``, or the steps after them, ``self[n:]``.

        ``self[:n] >> self[n:]`` has the values of ``self``. Comparing both computes no value.

        Raises
        ------
        ConfigurationError
            If the key is anything but ``[:n]`` or ``[n:]``, or no step is left.

        Examples
        --------
        >>> Constant(64)[:2] >> (Constant(64)[:2] >> 128)[1:]
        Constant(64)[:2] >> Constant(64)[:1] >> Constant(128)
        """
        match key:
            case slice(start=None | 0, stop=None, step=None | 1):
                return self
            case slice(start=None | 0, stop=stop, step=None | 1):
                return self._before(whole("n of seq[:n]", stop, at_least=1))
            case slice(start=start, stop=None, step=None | 1):
                return self._after(whole("n of seq[n:]", start, at_least=1))
            case _:
                raise ConfigurationError(
                    f"a sequence can only be cut as seq[:n] or seq[n:], got [{key!r}]"
                )

    def to_json(self) -> dict[str, object]:
        """Return the JSON document from which `sequence_from_json` makes an equal sequence.

        Examples
        --------
        >>> Constant(64).to_json()
        {'family': 'Constant', 'value': 64}
        """
        document: dict[str, object] = {"family": type(self).__name__}
        for name, value in self.arguments().items():
            document[name] = list(value) if isinstance(value, tuple) else value
        return document

    def sparkline(self, stop: Step, width: int = 60) -> str:
        """Return a line of bars: the values of the first `stop` steps, at most `width` wide.

        Raises
        ------
        ConfigurationError
            If a value is no number.

        Examples
        --------
        >>> (Constant(1)[:2] >> Constant(8)[:2] >> Constant(4)).sparkline(6)
        '▁▁██▄▄'
        """
        width = min(whole("width", width, at_least=1), whole("stop", stop, at_least=1))
        picked = [self(column * stop // width) for column in range(width)]
        heights = [value for value in picked if isinstance(value, int | float)]
        if len(heights) < width:
            raise ConfigurationError(f"only numbers can be drawn, got {self!r}")
        low, high = min(heights), max(heights)
        # Halved, because the span of two finite floats may overflow.
        span = (high / 2 - low / 2) or 1.0
        return "".join(_BARS[int((value / 2 - low / 2) / span * 7)] for value in heights)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Sequence) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    _repr_html_ = method_of("dasktune.report.notebook:sequence_html")

    def __repr__(self) -> str:
        """Return the canonical text; it is kept, because equality and hash use it often."""
        try:
            return self._text
        except AttributeError:
            object.__setattr__(self, "_text", self._canonical())
            return self._text

    _text: str

    def _canonical(self) -> str:
        words = []
        for position, (name, value) in enumerate(self.arguments().items()):
            text = repr(list(value) if isinstance(value, tuple) else value)
            words.append(text if position < self.positional else f"{name}={text}")
        return f"{type(self).__name__}({', '.join(words)})"

    def _before(self, stop: Step) -> Sequence:
        if self.end is not None and stop > self.end:
            raise ConfigurationError(
                f"n of seq[:n] must be <= {self.end}, where it ends, got {stop}"
            )
        return self if stop == self.end else self._ended(stop)

    def _after(self, start: Step) -> Sequence:
        if self.end is not None and start >= self.end:
            raise ConfigurationError(
                f"n of seq[n:] must be < {self.end}, where it ends, got {start}"
            )
        return self._rest(start)

    def _ended(self, stop: Step) -> Sequence:
        return Ended(self, stop)

    def _rest(self, start: Step) -> Sequence:
        return Rest(self, start)

    def _checked(self, step: Step) -> Step:
        if type(step) is not int or step < 0:
            step = whole("step", step, at_least=0)
        if self.end is not None and step >= self.end:
            raise ConfigurationError(f"step must be < {self.end}, the end of {self!r}, got {step}")
        return step


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Constant(Sequence):
    """The same value at every step: ``f(t) = value``, without an end.

    Parameters
    ----------
    value
        An int, float, bool, str or None; its type is kept.

    Examples
    --------
    >>> Constant(64).values(0, 3), Constant("adam")(7)
    ([64, 64, 64], 'adam')
    >>> Constant(1) == Constant(1.0)
    False
    """

    value: Value

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", plain(self.value))

    def __call__(self, step: Step) -> Value:
        """Return the value, which was checked when it was given."""
        self._checked(step)
        return self.value

    def formula(self, step: Step) -> Value:
        """Return the value."""
        return self.value

    def constant_until(self, step: Step) -> int | None:
        """Return None, because a constant keeps its value."""
        return None

    def __repr__(self) -> str:
        """Return the canonical text, which is not kept: a study has many constants."""
        return f"Constant({self.value!r})"

    def _rest(self, start: Step) -> Sequence:
        return self


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Rest(Sequence):
    """A family member without its first steps; written ``sequence[start:]``.

    Its step 0 is the member's step `start`.

    Examples
    --------
    >>> from dasktune.sequences import Warmup
    >>> Warmup(4, 1.0)[1:], Warmup(4, 1.0)[1:].values(0, 3)
    (Warmup(4, 1.0)[1:], [0.5, 0.75, 1.0])
    """

    sequence: Sequence
    start: Step

    def __post_init__(self) -> None:
        if isinstance(self.sequence, Rest | Ended | Joined):
            raise ConfigurationError(f"only a family member can be wrapped, got {self.sequence!r}")
        # Raises unless the rest has a first value.
        self.sequence(whole("start", self.start, at_least=1))

    @property
    def end(self) -> int | None:
        """Number of remaining steps; None for an endless member."""
        return None if self.sequence.end is None else self.sequence.end - self.start

    def formula(self, step: Step) -> Value:
        """Return the value of the member, `start` steps later."""
        return self.sequence.formula(self.start + step)

    def constant_until(self, step: Step) -> int | None:
        """Return the next change of the member."""
        change = self.sequence.constant_until(self.start + step)
        return None if change is None else change - self.start

    def boundaries(self, start: Step, stop: Step) -> tuple[Step, ...]:
        """Return the dividing steps of the member."""
        inner = self.sequence.boundaries(self.start + start, self.start + stop)
        return tuple(step - self.start for step in inner)

    def leaf_at(self, step: Step) -> tuple[Sequence, Step, int | None]:
        """Return the member, whose first step lies `start` steps before."""
        return self.sequence, -self.start, self.end

    def to_json(self) -> dict[str, object]:
        """Return the JSON document from which `sequence_from_json` makes an equal sequence."""
        return {"family": "Rest", "sequence": self.sequence.to_json(), "start": self.start}

    def _canonical(self) -> str:
        return f"{self.sequence!r}[{self.start}:]"

    def _rest(self, start: Step) -> Sequence:
        return Rest(self.sequence, self.start + start)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Ended(Sequence):
    """A family member, or the rest of one, that ends at `stop`; written ``sequence[:stop]``.

    Parameters
    ----------
    sequence
        A member of a family, or the rest of one.
    stop
        Number of its steps.

    Examples
    --------
    >>> Constant(64)[:3]
    Constant(64)[:3]
    >>> Constant(64)[:3].end
    3
    """

    sequence: Sequence
    stop: Step

    def __post_init__(self) -> None:
        if isinstance(self.sequence, Ended | Joined):
            raise ConfigurationError(f"only a family member can be wrapped, got {self.sequence!r}")
        # Families that can overflow grow, so a finite last value means that all are finite.
        self.sequence(whole("stop", self.stop, at_least=1) - 1)

    @property
    def end(self) -> int:
        """Number of its steps."""
        return self.stop

    def formula(self, step: Step) -> Value:
        """Return the value of the longer sequence."""
        return self.sequence.formula(step)

    def constant_until(self, step: Step) -> int:
        """Return the next change of the longer sequence, or the end."""
        change = self.sequence.constant_until(step)
        return self.stop if change is None else min(change, self.stop)

    def boundaries(self, start: Step, stop: Step) -> tuple[Step, ...]:
        """Return the dividing steps of the longer sequence, up to the end."""
        return self.sequence.boundaries(start, min(stop, self.stop))

    def leaf_at(self, step: Step) -> tuple[Sequence, Step, int | None]:
        """Return the family member, and the new end."""
        leaf, origin, _ = self.sequence.leaf_at(step)
        return leaf, origin, self.stop

    def to_json(self) -> dict[str, object]:
        """Return the JSON document from which `sequence_from_json` makes an equal sequence."""
        return {"family": "Ended", "sequence": self.sequence.to_json(), "stop": self.stop}

    def _canonical(self) -> str:
        return f"{self.sequence!r}[:{self.stop}]"

    def _ended(self, stop: Step) -> Sequence:
        return self.sequence[:stop]

    def _rest(self, start: Step) -> Sequence:
        return self.sequence[start:][: self.stop - start]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Joined(Sequence):
    """Sequences one after the other, each counting from its own step 0; written ``a >> b``.

    Joining joined sequences gives a flat list of pieces. The last piece decides the end.

    Parameters
    ----------
    pieces
        The sequences, in order.

    Attributes
    ----------
    starts
        The step at which each piece begins.

    Examples
    --------
    >>> joined = Constant(64)[:2] >> 128
    >>> joined, joined.values(0, 4)
    (Constant(64)[:2] >> Constant(128), [64, 64, 128, 128])
    >>> joined[:2]
    Constant(64)[:2]
    """

    pieces: tuple[Sequence, ...]
    starts: tuple[Step, ...] = field(init=False)

    def __post_init__(self) -> None:
        starts = [0]
        for piece in self.pieces[:-1]:
            if piece.end is None:
                raise ConfigurationError(
                    f"only a sequence with an end can be gone on from, got {piece!r}; "
                    f"end it first: ({piece!r})[:n]"
                )
            starts.append(starts[-1] + piece.end)
        object.__setattr__(self, "starts", tuple(starts))

    @property
    def end(self) -> int | None:
        """Number of its steps; None if the last piece is endless."""
        last = self.pieces[-1].end
        return None if last is None else self.starts[-1] + last

    def formula(self, step: Step) -> Value:
        """Return the value of the piece at `step`, counted from the piece's start."""
        index = self._index(step)
        return self.pieces[index].formula(step - self.starts[index])

    def constant_until(self, step: Step) -> int | None:
        """Return the next change of the piece at `step`, or its end."""
        index = self._index(step)
        change = self.pieces[index].constant_until(step - self.starts[index])
        return None if change is None else self.starts[index] + change

    def boundaries(self, start: Step, stop: Step) -> tuple[Step, ...]:
        """Return the joints and the dividing steps of the pieces."""
        steps: list[Step] = []
        for origin, piece in zip(self.starts, self.pieces, strict=True):
            if start < origin < stop:
                steps.append(origin)
            inner = piece.boundaries(max(start - origin, 0), stop - origin)
            steps.extend(origin + step for step in inner)
        return tuple(steps)

    def leaf_at(self, step: Step) -> tuple[Sequence, Step, int | None]:
        """Return the family member at `step`, its first step, and the end of its piece."""
        index = self._index(step)
        begun = self.starts[index]
        leaf, origin, end = self.pieces[index].leaf_at(step - begun)
        return leaf, begun + origin, None if end is None else begun + end

    def leaves(self) -> tuple[Sequence, ...]:
        """Return the pieces."""
        return self.pieces

    def to_json(self) -> dict[str, object]:
        """Return the JSON document from which `sequence_from_json` makes an equal sequence."""
        return {"family": "Joined", "pieces": [piece.to_json() for piece in self.pieces]}

    def _canonical(self) -> str:
        return " >> ".join(map(repr, self.pieces))

    def _ended(self, stop: Step) -> Sequence:
        index = self._index(stop - 1)
        last = self.pieces[index][: stop - self.starts[index]]
        return last if index == 0 else Joined((*self.pieces[:index], last))

    def _rest(self, start: Step) -> Sequence:
        index = self._index(start)
        first = self.pieces[index][start - self.starts[index] :]
        later = self.pieces[index + 1 :]
        return Joined((first, *later)) if later else first

    def _index(self, step: Step) -> int:
        return bisect_right(self.starts, step) - 1


def as_sequence(value: object) -> Sequence:
    """Return a sequence as it is, and a plain value as a `Constant`.

    Raises
    ------
    ConfigurationError
        If it is neither a sequence nor a plain, finite value.

    Examples
    --------
    >>> as_sequence(64)
    Constant(64)
    """
    if isinstance(value, Sequence):
        return value
    return Constant(value) if type(value) is float else _same_constant(plain(value))


@lru_cache(maxsize=1000, typed=True)
def _same_constant(value: Value) -> Constant:
    """Return the one constant of a value: many trials have the same few values."""
    return Constant(value)
