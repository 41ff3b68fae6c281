"""The loop over the steps: the variables of a paused call that it sets."""

from __future__ import annotations

import ast
import builtins
import dis
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from types import CodeType, FrameType

from dasktune.errors import TrainerError
from dasktune.trainer.fingerprint.source import Sources
from dasktune.trainer.liveness.clocks import times_in
from dasktune.trainer.liveness.loops import loop_of as step_loop_of

_SETS = ("STORE_FAST", "STORE_DEREF", "DELETE_FAST", "DELETE_DEREF")
_COUNTING = (enumerate, zip, *(each for each in vars(itertools).values() if isinstance(each, type)))
"""Iterators with a position of their own that no state can hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """The variables that a loop sets, by what the next turn does with them.

    Parameters
    ----------
    carries
        The variables that a turn may read before it sets them, and the line that sets them.
    drops
        The variables whose values no later turn reads, and times.
    perhaps
        The carried variables that a later turn reads only if a loop in it has no turns.
    """

    carries: Mapping[str, int | None] = field(default_factory=dict)
    drops: frozenset[str] = frozenset()
    perhaps: frozenset[str] = frozenset()


def loop_of(frame: FrameType) -> Loop:
    """Return the loop of a paused call; without its source, it may carry each variable."""
    code = frame.f_code
    known = step_loop_of(code, at=frame.f_lasti, namespace=frame.f_globals)
    if known is None:
        return Loop(carries=dict.fromkeys(_set_by(code)))
    times = times_in(known.function)
    carried = {
        name: each
        for name, each in known.variables.items()
        if each.kind == "carried" and name not in times
    }
    return Loop(
        carries={name: each.line for name, each in carried.items()},
        drops=times | (known.variables.keys() - known.live),
        perhaps=frozenset(name for name, each in carried.items() if each.needs_empty_loop),
    )


def is_looping(frame: FrameType) -> bool:
    """Return whether a paused call waits for the next turn of a ``for`` loop."""
    code, at = frame.f_code.co_code, frame.f_lasti
    # From Python 3.12 on, a frame may stand behind the instruction, in its cache.
    while at > 0 and dis.opname[code[at]] == "CACHE":
        at -= 2
    return dis.opname[code[at]] == "FOR_ITER"


def refuse_hidden_position(frame: FrameType) -> None:
    """Raise an error if the next step depends on a position that Python hides.

    That of ``enumerate`` or ``zip`` round the steps, of a loop round ``next(steps)``, and values
    that an expression has computed before it takes the next step.

    Raises
    ------
    TrainerError
        If it does, as far as the source shows it.
    """
    tree = Sources().definition(frame.f_code, frame.f_globals)
    if tree is None or isinstance(tree, ast.Lambda):
        return
    place = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For)]
    if is_looping(frame):
        for loop in loops:
            if place in (_place(loop), _place(loop.iter)):
                _refuse_counting(loop, frame)
        return
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and _place(call) == place:
            above = [*_above(call, parents)]
            is_whole = isinstance(above[0], (ast.Expr, ast.Assign, ast.AnnAssign, ast.Return))
            if not is_whole or any(isinstance(node, ast.For) for node in above):
                raise TrainerError(
                    f"{ast.unparse(call)} takes a step within a loop or an expression, whose "
                    "position no state can hold; loop over the steps: for step in run.steps()"
                )


def _refuse_counting(loop: ast.For, frame: FrameType) -> None:
    for call in ast.walk(loop.iter):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
        known = frame.f_globals.get(name, getattr(itertools, name, getattr(builtins, name, None)))
        if any(known is each for each in _COUNTING):
            raise TrainerError(
                f"{ast.unparse(loop.iter)} counts from 0 where a trial goes on; loop over the "
                "steps alone: 'for step in run.steps()' gives the step of the trial"
            )


def _above(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> Iterator[ast.AST]:
    while (above := parents.get(node)) is not None:
        yield above
        node = above


def _place(node: ast.AST) -> tuple[int | None, ...]:
    names = ("lineno", "end_lineno", "col_offset", "end_col_offset")
    return tuple(getattr(node, name, None) for name in names)


def _set_by(code: CodeType) -> list[str]:
    """Return the variables that a function sets."""
    names = [
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname.startswith(_SETS)
    ]
    return [*dict.fromkeys(names)]
