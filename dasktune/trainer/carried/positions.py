"""The places at which calls pause, and the turns of the loops around: told, and compared.

A function begins anew where a training goes on, and pauses first in the first loop over its steps,
in the first turn of each ``for`` loop around. Its variables come from the state, but where it
stands does not: Python gives no way to set it. So a state has the position, and a function that
begins elsewhere is refused.
"""

from __future__ import annotations

import ast
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from inspect import CO_GENERATOR
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from dasktune.errors import StateError
from dasktune.trainer.carried.frames import values_in
from dasktune.trainer.carried.kinds import kind_of
from dasktune.trainer.carried.places import SavedParts
from dasktune.trainer.carried.texts import are_distinct, text_of
from dasktune.trainer.liveness.loops import PausePlace, pause_of
from dasktune.trainer.liveness.managers import may_suppress
from dasktune.trainer.liveness.scopes import bindings, last_name, own_nodes

Record = dict[str, Any]
"""Of one call: ``call`` its name, ``at`` its place, ``loops`` the values of loops around it."""

Parts = Callable[[], SavedParts]
"""Returns what the state of a run holds; few functions need it here."""

_For = (ast.For, ast.AsyncFor)
_Loops = (*_For, ast.While)
_ENDLESS = frozenset({"steps", "iter", "tqdm", "trange"})
"""Functions that give the steps on, and do not end."""

_COUNTING = frozenset({"range", "enumerate", "count", "items", "keys"})
"""Functions and methods that give no value twice."""

_PASSING = frozenset({"iter", "sorted", "reversed", "tqdm", "list", "tuple"})
"""Functions that give the values of their argument."""

_MOST_LETTERS = 50

_REMEDY = (
    "loop over run.steps() alone, and choose by run.step in each step what it does; or write the "
    "loop as a while loop over a variable"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Around:
    """A ``for`` loop around the place of a pause.

    Parameters
    ----------
    number
        Tells it from the other loops of the function.
    is_caught
        Whether an error between it and the pause may be caught, so that the loop goes on.
    """

    node: ast.For | ast.AsyncFor
    number: str
    is_caught: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """The place of a pause, and the ways out of it.

    Parameters
    ----------
    number
        Tells it from the other places of the function. Comments do not change it.
    loops
        The ``for`` loops around, the innermost first.
    breaks
        Whether the function may break out of the loop at which it pauses.
    ends
        Whether this loop may end by itself.
    returns
        Whether the function may return out of this loop.
    is_caught
        Whether an error of the pause may be caught in the function.
    """

    pause: PausePlace
    number: str
    loops: tuple[_Around, ...]
    breaks: bool
    ends: bool
    returns: bool
    is_caught: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stand:
    """A paused call, and the loops around that may come to another turn."""

    frame: FrameType
    place: _Place | None
    loops: tuple[_Around, ...] = ()

    @property
    def call(self) -> str:
        """The name of the function."""
        return self.frame.f_code.co_qualname

    @property
    def at(self) -> str:
        """The place, equal in each process that runs the code."""
        if self.place is not None:
            return self.place.number
        code = self.frame.f_code
        return f"{self.frame.f_lasti} of {zlib.crc32(code.co_code):08x}"

    @property
    def where(self) -> str:
        """File and line of the pause."""
        line = self.frame.f_lineno if self.place is None else self.place.pause.node.lineno
        return f"{Path(self.frame.f_code.co_filename).name}:{line}"


class PausePositions:
    """The places at which a training function pauses."""

    def __init__(self) -> None:
        self._places: dict[tuple[CodeType, int], _Place | None] = {}
        self._begun: dict[tuple[str, str, str], tuple[Callable[[], Any], str]] = {}

    def begin(self, frames: Iterable[FrameType], parts: Parts) -> None:
        """Note the values of the loops around in their first turns: a step may change them."""
        for stand in self._stands(frames, parts):
            for loop in stand.loops:
                for name, value in values_in(stand.frame, _names(loop)).items():
                    if kind_of(value) != "scalar":
                        key = (stand.call, loop.number, name)
                        self._begun[key] = _reference(value), text_of(value, parts())

    def record(self, frames: Sequence[FrameType], parts: Parts) -> list[Record]:
        """Return the position of each call, the innermost first; empty if there is but one."""
        stands = self._stands(frames, parts)
        if all(not each.loops and each.place and each.place.pause.is_only for each in stands):
            return []
        records: list[Record] = []
        for stand in stands:
            record: Record = {"call": stand.call, "at": stand.at}
            if stand.loops:
                record["loops"] = {
                    loop.number: self._text(stand, loop, parts) for loop in stand.loops
                }
            records.append(record)
        return records

    def refuse_others(
        self, saved: Sequence[Record], frames: Sequence[FrameType], parts: Parts
    ) -> None:
        """Raise an error if a training goes on at another place than that of the calls.

        Parameters
        ----------
        saved
            What `record` has returned. Empty if a state has none: then nothing is known.

        Raises
        ------
        StateError
            If it does, or if nobody can know.
        """
        if not saved:
            return
        stands, now = self._stands(frames, parts), self.record(frames, parts)
        if not stands:
            raise _refusal(saved[-1], _Stand(frame=frames[0], place=None))
        # The outermost first: there the way parts.
        for old, new, stand in zip_longest(saved[::-1], now[::-1], stands[::-1]):
            if old is None or new is None or _are_apart(old, new):
                raise _refusal(old, stand or stands[0])
            for loop in stand.loops:
                was, now_at = old.get("loops", {}).get(loop.number), new["loops"][loop.number]
                if was is not None and (was != now_at or not _is_sure(loop, stand.frame, parts)):
                    raise _refusal_of_loop(loop, stand, was, now_at)

    def _text(self, stand: _Stand, loop: _Around, parts: Parts) -> str:
        """Return the values that a loop has set, as a text; empty if they tell nothing."""
        names = _names(loop)
        if not _tells(loop):
            return ""
        values, texts = values_in(stand.frame, names), list[str]()
        for name in names:
            held, begun = self._begun.get((stand.call, loop.number, name), (None, ""))
            value = values.get(name)
            if held is not None and value is not None and held() is value:
                texts.append(begun)
            else:
                texts.append(text_of(value, parts()) if name in values else "unbound")
        return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"

    def _stands(self, frames: Iterable[FrameType], parts: Parts) -> list[_Stand]:
        """Return the calls, but for those that never go on."""
        stands: list[_Stand] = []
        is_left = False
        """Whether the calls so far may come to their ends."""
        for frame in frames:
            place = self._place(frame)
            if place is None:
                stands.append(_Stand(frame=frame, place=None))
                is_left = True
                continue
            is_maker = _makes_steps(place.pause.node)
            if not stands and is_maker and not frame.f_code.co_flags & CO_GENERATOR:
                return []  # run.steps() begins once: the function never comes to another turn
            is_left = place.breaks or (is_left if stands else place.ends)
            loops = tuple(
                loop
                for loop in place.loops
                if (is_left or loop.is_caught) and not _goes_on(loop, frame, parts)
            )
            stands.append(_Stand(frame=frame, place=place, loops=loops))
            is_left = is_left or place.returns or place.is_caught
        return stands

    def _place(self, frame: FrameType) -> _Place | None:
        key = (frame.f_code, frame.f_lasti)
        if key not in self._places:
            self._places[key] = _place_of(frame)
        return self._places[key]


def _place_of(frame: FrameType) -> _Place | None:
    """Return the place at which a call pauses; None if its source is unknown."""
    pause = pause_of(frame.f_code, frame.f_lasti, frame.f_globals)
    if pause is None:
        return None
    node = pause.node
    body = node.body if isinstance(node, _For) else []
    caught, loops = False, []
    for each in _above(node, pause.function):
        caught = caught or _may_catch(each, frame)
        if isinstance(each, _For):
            number = _number(each, pause.function)
            loops.append(_Around(node=each, number=number, is_caught=caught))
    return _Place(
        pause=pause,
        number=_number(node, pause.function),
        loops=tuple(loops),
        breaks=any(map(_breaks, body)),
        ends=not isinstance(node, _For) or not _is_endless(node.iter),
        returns=any(isinstance(each, ast.Return) for each in own_nodes(body)),
        is_caught=caught,
    )


def _above(node: ast.AST, function: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements within a function that have a node in their bodies, innermost first."""
    parents = {child: each for each in ast.walk(function) for child in ast.iter_child_nodes(each)}
    while (above := parents[node]) is not function:
        # What a loop goes through, and what comes behind it, is not within it.
        if not isinstance(above, _Loops) or node in above.body:
            yield above
        node = above


def _may_catch(node: ast.AST, frame: FrameType) -> bool:
    if isinstance(node, (ast.With, ast.AsyncWith)):
        code = frame.f_code
        names = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
        return any(may_suppress(each.context_expr, frame.f_globals, names) for each in node.items)
    return bool(getattr(node, "handlers", None))


def _breaks(node: ast.AST) -> bool:
    """Return whether a statement may break out of the loop in which it stands."""
    if isinstance(node, ast.Break):
        return True
    if isinstance(node, _Loops):
        return any(map(_breaks, node.orelse))
    return any(map(_breaks, ast.iter_child_nodes(node)))


def _is_endless(steps: ast.expr) -> bool:
    """Return whether a loop over an expression goes on as long as the training."""
    calls = [each for each in ast.walk(steps) if isinstance(each, ast.Call)]
    return all(last_name(each.func) in _ENDLESS for each in calls)


def _makes_steps(node: ast.AST) -> bool:
    """Return whether a loop goes over new steps: there are such but once."""
    if not isinstance(node, _For):
        return False
    calls = [each for each in ast.walk(node.iter) if isinstance(each, ast.Call)]
    return any(last_name(each.func) == "steps" for each in calls)


def _number(node: ast.AST, function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return kind and number of a node; comments and line breaks do not change them."""
    alike = [each for each in own_nodes(function.body) if type(each) is type(node)]
    return f"{type(node).__name__} {next(i for i, each in enumerate(alike) if each is node)}"


def _numbered(number: str, function: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST | None:
    kind, _, index = number.partition(" ")
    alike = [each for each in own_nodes(function.body) if type(each).__name__ == kind]
    return alike[int(index)] if index.isdigit() and int(index) < len(alike) else None


def _names(loop: _Around) -> list[str]:
    """Return the names that a loop sets in each turn."""
    targets = [each for each in ast.walk(loop.node.target) if isinstance(each, ast.Name)]
    return [each.id for each in targets if isinstance(each.ctx, ast.Store)]


def _tells(loop: _Around) -> bool:
    """Return whether the variables of a loop have the values of its turn where a step begins."""
    targets = (ast.Name, ast.Tuple, ast.List, ast.Starred, ast.expr_context)
    if not all(isinstance(each, targets) for each in ast.walk(loop.node.target)):
        return False
    names = {*_names(loop)}
    return not any(names & {*bindings(each)} for each in own_nodes(loop.node.body))


def _goes_on(loop: _Around, frame: FrameType, parts: Parts) -> bool:
    """Return whether a loop goes over a tracked object, which knows its own position."""
    thing: ast.AST = loop.node.iter
    while isinstance(thing, ast.Call) and last_name(thing.func) in ("iter", "tqdm") and thing.args:
        thing = thing.args[0]
    if isinstance(thing, ast.Call) and isinstance(thing.func, ast.Attribute) and not thing.args:
        thing = thing.func.value
    place = parts().of(_value(thing, frame))
    return place is not None and bool(place[0] == "tracked")


def _value(node: ast.AST, frame: FrameType) -> Any:
    """Return the value of a name or of an attribute, without running code; else None."""
    match node:
        case ast.Name(id=name):
            return values_in(frame, [name]).get(name)
        case ast.Attribute(value=value, attr=name):
            return getattr(_value(value, frame), "__dict__", {}).get(name)
    return None


def _is_sure(loop: _Around, frame: FrameType, parts: Parts) -> bool:
    """Return whether equal values of a loop mean an equal turn."""
    return _tells(loop) and _has_no_doubles(loop.node.iter, frame, parts)


def _has_no_doubles(node: ast.AST, frame: FrameType, parts: Parts) -> bool:
    """Return whether what a loop goes over has no value twice, as far as it is known."""
    match node:
        case ast.Call() if last_name(node.func) in _COUNTING:
            return True
        case ast.Call() if last_name(node.func) == "zip":
            return any(_has_no_doubles(each, frame, parts) for each in node.args)
        case ast.Call(args=[first, *_]) if last_name(node.func) in _PASSING:
            return _has_no_doubles(first, frame, parts)
        case ast.Tuple(elts=items) | ast.List(elts=items):
            try:
                texts = [repr(ast.literal_eval(each)) for each in items]
            except ValueError:  # names, calls and others
                return False
            return len({*texts}) == len(texts)
    return are_distinct(_value(node, frame), parts())


def _are_apart(old: Record, new: Record) -> bool:
    """Return whether two calls pause at different places, as far as they can be compared."""
    if old["call"] != new["call"]:
        return True
    codes = [each["at"].partition(" of ")[2] for each in (old, new)]
    # Without its source, a call has a place only among equal codes.
    return bool(old["at"] != new["at"]) and codes[0] == codes[1]


def _reference(value: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(value)
    except TypeError:  # an object without weak references
        return lambda: value


def _refusal(old: Record | None, stand: _Stand) -> StateError:
    """Return the error for a training that goes on at another place."""
    goes_on = "elsewhere" if old is None else f"elsewhere: in {old['call']}"
    place = stand.place
    if old is not None and place is not None and old["call"] == stand.call:
        node = _numbered(old["at"], place.pause.function)
        goes_on = goes_on if node is None else _named(node)
    begins = "here" if place is None else _named(place.pause.node)
    return StateError(
        stand.where,
        f"the training goes on {goes_on}, and the function begins again {begins}: its variables "
        "come from the state, but not its place. Write one loop over run.steps(), and choose by "
        "run.step in each step what it does",
    )


def _named(node: ast.AST) -> str:
    """Return where a pause is, for a message."""
    kind = "in the loop" if isinstance(node, _For) else f"at `{_short(node)}`"
    return f"{kind} at line {getattr(node, 'lineno', 0)}"


def _refusal_of_loop(loop: _Around, stand: _Stand, was: str, now: str) -> StateError:
    """Return the error for a loop around the steps that begins anew."""
    node = loop.node
    name = f"for {ast.unparse(node.target)} in {_short(node.iter)}"
    turns = f" (it is at {now}, and was at {was})" if was != now else ""
    return StateError(
        f"{Path(stand.frame.f_code.co_filename).name}:{node.lineno}",
        f"the loop `{name}` around the steps begins anew where a training goes on{turns}, and no "
        f"state can hold its turn: {_REMEDY}",
    )


def _short(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 3]}..."
