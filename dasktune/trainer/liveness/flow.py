"""Backward data flow through the syntax tree of a function.

A place, such as a variable, is live at a point if some path from that point reads it before it
writes the whole of it. `Flow` walks from the end of the statements to their beginning, and asks
a `Meaning` which places an expression reads and writes. Any statement of a ``try`` block may
raise an exception; exceptions that no handler of the function catches end the trial.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

Live = frozenset[str]
"""Places that may be read before they are wholly written."""

NOTHING: Live = frozenset()

Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Loop = ast.For | ast.AsyncFor | ast.While


class Meaning(Protocol):
    """Which places the expressions and statements of a function read and write."""

    def expression(self, node: ast.AST, live: Live, flow: Flow) -> Live | None:
        """Return the places live before an expression; None if its parts decide."""

    def statement(self, node: ast.stmt, live: Live, flow: Flow) -> Live | None:
        """Return the places live before a statement; None if its parts decide."""

    def suppresses(self, manager: ast.expr) -> bool:
        """Return whether a context manager may end an exception of its block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exits:
    """The places live where control goes when it leaves a block other than at its end."""

    returns: Live = NOTHING
    breaks: Live = NOTHING
    continues: Live = NOTHING
    raises: Live = NOTHING

    def through(self, before: Callable[[Live], Live]) -> Exits:
        """Return the exits of a block on whose way out further statements run."""
        return Exits(
            returns=before(self.returns),
            breaks=before(self.breaks),
            continues=before(self.continues),
            raises=before(self.raises),
        )


class Flow:
    """The data flow of one function.

    Parameters
    ----------
    watched
        Loops and expressions; `at` has the places live at them afterwards: for a loop at its
        head, for an expression behind it.
    has_turns
        Whether each ``for`` loop has at least one turn, as one over batches of data.
    """

    def __init__(
        self,
        meaning: Meaning,
        watched: Iterable[ast.AST] = (),
        endless: Collection[ast.AST] = (),
        *,
        has_turns: bool = False,
    ) -> None:
        self._meaning = meaning
        self._endless, self._has_turns = endless, has_turns
        self.at: dict[ast.AST, Live] = dict.fromkeys(watched, NOTHING)

    def block(self, statements: Sequence[ast.stmt], live: Live, exits: Exits) -> Live:
        """Return the places live before statements that are followed by `live`."""
        for statement in reversed(statements):
            before = self._meaning.statement(statement, live, self)
            if before is None:
                before = self._statement(statement, live, exits)
            live = before | exits.raises
        return live

    def expressions(self, nodes: Iterable[ast.AST | None], live: Live) -> Live:
        """Return the places live before expressions that are evaluated in this order."""
        for node in reversed([*nodes]):
            live = self.expression(node, live)
        return live

    def expression(self, node: ast.AST | None, live: Live) -> Live:
        """Return the places live before an expression, or before storing into a target."""
        if node is None:
            return live
        if node in self.at:
            self.at[node] |= live
        before = self._meaning.expression(node, live, self)
        if before is not None:
            return before
        match node:
            case ast.BoolOp(values=[first, *others]):
                for other in reversed(others):
                    live |= self.expression(other, live)
                return self.expression(first, live)
            case ast.IfExp():
                otherwise = self.expression(node.orelse, live)
                return self._condition(node.test, self.expression(node.body, live), otherwise)
            case ast.Compare(left=left, comparators=[first, *others]):
                for other in reversed(others):
                    live |= self.expression(other, live)
                return self.expressions([left, first], live)
            case ast.NamedExpr():
                return self.expression(node.value, self.expression(node.target, live))
            case ast.Dict():
                pairs = zip(node.keys, node.values, strict=True)
                return self.expressions((part for pair in pairs for part in pair), live)
        return self.expressions(ast.iter_child_nodes(node), live)

    def _condition(self, node: ast.expr, if_true: Live, if_false: Live) -> Live:
        """Return the places live before a condition with two continuations."""
        match node:
            case ast.Constant(value=value):
                return if_true if value else if_false
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return self._condition(inner, if_false, if_true)
            case ast.BoolOp(op=operator, values=values):
                for operand in reversed(values):
                    before = self._condition(operand, if_true, if_false)
                    if isinstance(operator, ast.And):
                        if_true = before
                    else:
                        if_false = before
                return before
        return self.expression(node, if_true | if_false)

    def _statement(self, node: ast.stmt, live: Live, exits: Exits) -> Live:
        match node:
            case ast.Return():
                return self.expression(node.value, exits.returns)
            case ast.Raise():
                return self.expressions([node.exc, node.cause], exits.raises)
            case ast.Break():
                return exits.breaks
            case ast.Continue():
                return exits.continues
            case ast.Assert():
                failed = self.expression(node.msg, exits.raises)
                return self._condition(node.test, live, failed)
            case ast.If():
                body = self.block(node.body, live, exits)
                return self._condition(node.test, body, self.block(node.orelse, live, exits))
            case ast.For() | ast.AsyncFor() | ast.While():
                return self._loop(node, live, exits)
            case ast.With() | ast.AsyncWith():
                return self._with(node, live, exits)
            case ast.Try() | ast.TryStar():
                return self._try(node, live, exits)
            case ast.Match():
                return self._match(node, live, exits)
        return self._simple(node, live, exits)

    def _simple(self, node: ast.stmt, live: Live, exits: Exits) -> Live:
        match node:
            case ast.Assign():
                return self.expressions([node.value, *node.targets], live)
            case ast.AugAssign():
                live = self.expression(node.target, live)
                live = self.expression(node.value, live)
                return self.expression(_as_read(node.target), live)
            case ast.AnnAssign(value=None):
                return live
            case ast.AnnAssign():
                return self.expressions([node.value, node.target], live)
            case ast.Delete():
                # What is deleted must be there: a deletion reads, too.
                live = self.expressions(node.targets, live)
                return self.expressions(map(_as_read, node.targets), live)
            case ast.ClassDef():
                live = self._store(node.name, live)
                return self.expressions([*node.decorator_list, *node.bases, *node.keywords], live)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                live = self._store(node.name, live)
                return self.expressions([*node.decorator_list, *evaluated_of(node)], live)
            case ast.Import() | ast.ImportFrom():
                for item in node.names:
                    live = self._store(item.asname or item.name.partition(".")[0], live)
                return live
            case ast.Global() | ast.Nonlocal():
                return live
        return self.expressions(ast.iter_child_nodes(node), live)

    def _loop(self, node: _Loop, live: Live, exits: Exits) -> Live:
        if node in self._endless:
            live, after, exits = NOTHING, NOTHING, Exits()
        else:
            after = self.block(node.orelse, live, exits)
        head = NOTHING
        while True:
            inner = replace(exits, breaks=live, continues=head)
            body = self.block(node.body, head, inner)
            if isinstance(node, ast.While):
                before = self._condition(node.test, body, after)
            else:
                before = self.expression(node.target, body) | after
            before |= head | exits.raises
            if before == head:
                break
            head = before
        if node in self.at:
            self.at[node] |= head
        if isinstance(node, ast.While):
            return head
        first = self.expression(node.target, body) if self._has_turns else head
        return self.expression(node.iter, first)

    def _with(self, node: ast.With | ast.AsyncWith, live: Live, exits: Exits) -> Live:
        managers = [item.context_expr for item in node.items]
        suppressed = live if any(map(self._meaning.suppresses, managers)) else NOTHING
        before = self.block(node.body, live, replace(exits, raises=exits.raises | suppressed))
        for item in reversed(node.items):
            before = self.expression(item.optional_vars, before | suppressed)
            before = self.expression(item.context_expr, before)
        return before

    def _try(self, node: ast.Try | ast.TryStar, live: Live, exits: Exits) -> Live:
        if node.finalbody:
            outer = exits
            exits = outer.through(lambda after: self.block(node.finalbody, after, outer))
            live = self.block(node.finalbody, live, outer)
        raises = exits.raises
        for handler in reversed(node.handlers):
            after, left = live, exits
            if handler.name is not None:
                # Python deletes the name at the end of the handler.
                after = self._store(handler.name, live)
                left = exits.through(lambda live, name=handler.name: self._store(name, live))  # type: ignore[misc]
            before = self.block(handler.body, after, left)
            if handler.name is not None:
                before = self._store(handler.name, before)
            raises |= self.expression(handler.type, before)
        end = self.block(node.orelse, live, exits)
        return self.block(node.body, end, replace(exits, raises=raises))

    def _match(self, node: ast.Match, live: Live, exits: Exits) -> Live:
        otherwise = live
        for case in reversed(node.cases):
            matched = self.block(case.body, live, exits)
            if case.guard is not None:
                matched = self._condition(case.guard, matched, otherwise)
            for name in captures_of(case.pattern):
                matched = self._store(name, matched)
            otherwise |= self.expression(case.pattern, matched)
        return self.expression(node.subject, otherwise)

    def _store(self, name: str, live: Live) -> Live:
        return self.expression(ast.Name(id=name, ctx=ast.Store()), live)


def evaluated_of(node: Function) -> list[ast.expr | None]:
    """Return the expressions that a definition evaluates: defaults and annotations."""
    given = node.args
    arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    arguments += [item for item in (given.vararg, given.kwarg) if item is not None]
    annotations = [item.annotation for item in arguments]
    return [*given.defaults, *given.kw_defaults, *annotations, getattr(node, "returns", None)]


def captures_of(pattern: ast.pattern) -> list[str]:
    """Return the names that a pattern binds where it matches."""
    names = [
        item.rest if isinstance(item, ast.MatchMapping) else item.name
        for item in ast.walk(pattern)
        if isinstance(item, (ast.MatchMapping, ast.MatchAs, ast.MatchStar))
    ]
    return [name for name in names if name is not None]


def _as_read(target: ast.expr) -> ast.expr:
    """Return the expression that reads what a target stores or deletes."""
    match target:
        case ast.Name():
            return ast.Name(id=target.id, ctx=ast.Load())
        case ast.Attribute():
            return ast.Attribute(value=target.value, attr=target.attr, ctx=ast.Load())
        case ast.Tuple() | ast.List():
            return ast.Tuple(elts=[_as_read(item) for item in target.elts], ctx=ast.Load())
    return target
