"""The variables that a training function hands on from one turn of its loop to the next."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import CodeType
from typing import Any, Literal

from dasktune.trainer.fingerprint.source import Sources
from dasktune.trainer.liveness.flow import NOTHING, Exits, Flow, Function, Live
from dasktune.trainer.liveness.reading import FurtherPlaces, Reading
from dasktune.trainer.liveness.scopes import bindings, last_name, own_nodes

_For = (ast.For, ast.AsyncFor)
_MAKING = frozenset({"iter", "enumerate", "zip", "map", "filter", "tqdm", "islice", "chain"})
"""Functions that make an iterator of another, and take nothing from it."""

Kind = Literal["carried", "dead", "constant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """How one turn of the loop hands a variable on to the next.

    Parameters
    ----------
    kind
        "carried": the loop assigns it, and a turn may read the value of the turn before.
        "dead": no turn reads the value of the turn before. "constant": the loop never assigns
        it; the object in it may change.
    line
        Of the first assignment in the loop; None of a constant.
    needs_empty_loop
        Whether a turn reads the value of the turn before only if a ``for`` loop in the turn has
        no turns, such as one over batches: the loss of the last batch.
    """

    kind: Kind
    line: int | None = None
    needs_empty_loop: bool = False


def carried_variables(
    code: CodeType,
    *,
    at: int | None = None,
    namespace: dict[str, Any] | None = None,
    steppers: Collection[str] = ("steps",),
) -> Mapping[str, Variable] | None:
    """Return how the loop over the steps hands on each variable of a frame, by name.

    None: the source or the loop is unknown, and each variable may be carried.

    Parameters
    ----------
    code
        Of the function with the loop, or of a function that calls it.
    at
        The instruction at which the frame pauses, its `f_lasti`. Else the loop is the one over
        ``run.steps()``, or over an iterator that was made of it.
    namespace
        The global variables of the function; they tell which context managers raise on.
    steppers
        The functions and methods of which the loop uses one.
    """
    loop = loop_of(code, at=at, namespace=namespace, steppers=steppers)
    return None if loop is None else loop.variables


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoop:
    """The loop over the steps: its variables, and the places live where a turn begins."""

    function: Function
    variables: Mapping[str, Variable]
    live: Live


def loop_of(
    code: CodeType,
    *,
    at: int | None = None,
    namespace: dict[str, Any] | None = None,
    steppers: Collection[str] = ("steps",),
    places: Callable[[Function], FurtherPlaces] | None = None,
) -> StepLoop | None:
    """Return the loop of `carried_variables`; `places` are of interest beside variables."""
    node = Sources().definition(code, namespace)
    if node is None or isinstance(node, ast.Lambda):
        return None
    nodes = [*own_nodes(node.body)]
    steps = _Steps(steppers, nodes)
    pauses = steps.pauses(nodes) if at is None else _paused_at(nodes, code, at)
    if not pauses:
        return None
    names = frozenset(code.co_varnames + code.co_cellvars + code.co_freevars)
    others = None if places is None else places(node)
    reading = Reading.of(node, names, namespace or {}, others)
    endless = [item for item in pauses if isinstance(item, _For) and steps.makes(item.iter)]
    lives: list[Live] = []
    for has_turns in (False, True):
        flow = Flow(reading, pauses, endless, has_turns=has_turns)
        flow.block(node.body, NOTHING, Exits())
        lives.append(NOTHING.union(reading.always, code.co_freevars, *flow.at.values()))
    live, certain = lives
    lines = _first_lines(node, [_turn(item, node, item in endless) for item in pauses])
    variables = {name: _variable(name, lines.get(name), live, certain) for name in sorted(names)}
    return StepLoop(function=node, variables=variables, live=live)


def _variable(name: str, line: int | None, live: Live, certain: Live) -> Variable:
    if line is None:
        return Variable(kind="constant")
    if name not in live:
        return Variable(kind="dead", line=line)
    return Variable(kind="carried", line=line, needs_empty_loop=name not in certain)


@dataclass(frozen=True, slots=True, kw_only=True)
class PausePlace:
    """The place at which a call pauses.

    Parameters
    ----------
    node
        The loop, or the expression.
    is_only
        Whether the function can pause nowhere else, as far as its source shows it.
    """

    function: ast.FunctionDef | ast.AsyncFunctionDef
    node: ast.For | ast.AsyncFor | ast.expr
    is_only: bool


def pause_of(code: CodeType, at: int, namespace: dict[str, Any]) -> PausePlace | None:
    """Return the place of a call that pauses at an instruction; None if its source is unknown."""
    function = Sources().definition(code, namespace)
    if function is None or isinstance(function, ast.Lambda):
        return None
    nodes = [*own_nodes(function.body)]
    node = next(iter(_paused_at(nodes, code, at)), None)
    if not isinstance(node, (*_For, ast.expr)):
        return None
    steps = _Steps(("steps",), nodes)
    # Inner functions may use the iterator of the steps, too.
    is_known = not code.co_cellvars or (isinstance(node, _For) and steps.makes(node.iter))
    return PausePlace(
        function=function, node=node, is_only=is_known and steps.pauses(nodes) == [node]
    )


class _Steps:
    """Recognises the expressions from which a function gets its steps."""

    def __init__(self, steppers: Collection[str], nodes: Sequence[ast.AST]) -> None:
        self._steppers = steppers
        self._iterators: set[str] = set()
        self._assigned: set[ast.AST] = set()
        for _ in range(2):  # an iterator may be made of another
            for node in nodes:
                self._note(node)

    def pauses(self, nodes: Iterable[ast.AST]) -> list[ast.AST]:
        """Return the loops and expressions at which the function may pause."""
        loops: list[ast.AST] = [
            node for node in nodes if isinstance(node, _For) and self._gives(node.iter)
        ]
        made = {id(part) for loop in loops for part in ast.walk(loop.iter)}  # type: ignore[attr-defined]
        made |= {id(part) for value in self._assigned for part in ast.walk(value)}
        return loops + [node for node in nodes if id(node) not in made and self._is_pause(node)]

    def makes(self, node: ast.AST) -> bool:
        """Return whether an expression begins the steps: it can do so only once."""
        calls = (item for item in ast.walk(node) if isinstance(item, ast.Call))
        return any(last_name(call.func) in self._steppers for call in calls)

    def _note(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                for target, value in zip(names, values, strict=False):
                    self._note(ast.Assign(targets=[target], value=value))
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.expr() as value)
                | ast.NamedExpr(target=ast.Name(id=name), value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ) if self._gives(value) and not _takes_next(value):
                self._iterators.add(name)
                self._assigned.add(value)

    def _gives(self, node: ast.AST) -> bool:
        return self.makes(node) or any(
            isinstance(item, ast.Name) and item.id in self._iterators for item in ast.walk(node)
        )

    def _is_pause(self, node: ast.AST) -> bool:
        match node:
            case ast.Call(func=ast.Attribute(value=value)) if self._gives(value):
                return True
            case ast.Call() if last_name(node.func) not in _MAKING:
                return any(self._gives(part) for part in [*node.args, *node.keywords])
            case ast.YieldFrom():
                return self._gives(node.value)
        return False


def _takes_next(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and last_name(value.func) in ("next", "__next__")


def _paused_at(nodes: Iterable[ast.AST], code: CodeType, at: int) -> list[ast.AST]:
    """Return the loop or expression of an instruction, as a list that may be empty."""
    place = next(islice(code.co_positions(), at // 2, None))
    loops = [
        node
        for node in nodes
        # Versions of Python differ in the place of the instruction that begins a turn.
        if isinstance(node, _For) and place in (_place(node), _place(node.iter))
    ]
    others = [node for node in nodes if isinstance(node, ast.expr) and _place(node) == place]
    return [*(loops or others)][-1:]


def _place(node: ast.AST) -> tuple[int | None, ...]:
    parts = ("lineno", "end_lineno", "col_offset", "end_col_offset")
    return tuple(getattr(node, part, None) for part in parts)


def _turn(pause: ast.AST, function: ast.AST, is_endless: bool) -> list[ast.AST]:
    """Return the code that may run between two pauses."""
    if is_endless and isinstance(pause, _For):
        return [pause.target, *pause.body]
    around = [
        node
        for node in ast.walk(function)
        if isinstance(node, (*_For, ast.While)) and any(item is pause for item in ast.walk(node))
    ]
    return [*around[:1]]


def _first_lines(function: Function, turns: Iterable[list[ast.AST]]) -> dict[str, int]:
    """Return the line of the first assignment of each name that is assigned between pauses."""
    bound = [(node, name) for turn in turns for node in own_nodes(turn) for name in bindings(node)]
    inner = (node for node in ast.walk(function) if isinstance(node, ast.Nonlocal))
    bound += [(node, name) for node in inner for name in node.names]
    lines: dict[str, int] = {}
    for node, name in bound:
        line = getattr(node, "lineno", 0)
        lines[name] = min(line, lines.get(name, line))
    return lines
