"""Mutants: small changes of the package's code, each of which some test should notice.

The operators are fixed; which mutants of a module are tried is drawn by a seed. Only code inside
functions changes. Annotations, log lines, and the texts of errors and warnings stay as they are.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

BOUNDARY: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
LOGS = {"log", "logger", "logging", "warnings"}
"""Names whose methods only tell people something."""

Functions = ast.FunctionDef | ast.AsyncFunctionDef
Change = tuple[str, Any, str]
"""The operator's name, the node that is replaced, and its new code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One changed expression or statement.

    Attributes
    ----------
    path
        File, from the root of the repository.
    line
        Line of the change, counted from 1.
    function
        The innermost function or method, with its classes.
    operator
        The kind of the change.
    before, after
        The code that is replaced, and what replaces it.
    start, end
        Position of `before` in the file, in bytes.
    occurrence
        Counts the equal changes in one function from 1.
    """

    path: str
    line: int
    function: str
    operator: str
    before: str
    after: str
    start: int
    end: int
    occurrence: int = 1

    @property
    def name(self) -> str:
        """The mutant in one line; the same as long as the changed code is."""
        before = " ".join(self.before.split())
        after = " ".join(self.after.split())
        which = f" ({self.occurrence})" if self.occurrence > 1 else ""
        return f"{self.path} {self.function}: {before} -> {after}{which}"

    @property
    def part(self) -> str:
        """The folder of the package that holds the file."""
        return self.path.split("/")[1]

    def lines(self, source: str) -> list[int]:
        """Return the lines of the change, in the file that it was made from."""
        return [self.line]

    def apply(self, source: str) -> str:
        """Return the source of the file with the change."""
        code = source.encode()
        return (code[: self.start] + self.after.encode() + code[self.end :]).decode()


def mutants_of(path: str, source: str, lines: Collection[int]) -> Iterator[Mutant]:
    """Yield all mutants of a module on these of its lines."""
    occurrences: Counter[str] = Counter()
    for mutant in _all_mutants(path, source):
        occurrences[mutant.name] += 1
        if mutant.line in lines:
            yield replace(mutant, occurrence=occurrences[mutant.name])


def _all_mutants(path: str, source: str) -> Iterator[Mutant]:
    code, begins = source.encode(), [0]
    for text in code.splitlines(keepends=True):
        begins.append(begins[-1] + len(text))
    for function, node in _inside_functions(ast.parse(source)):
        for operator, place, after in _changes(node):
            start = begins[place.lineno - 1] + place.col_offset
            end = begins[place.end_lineno - 1] + place.end_col_offset
            yield Mutant(
                path=path,
                line=place.lineno,
                function=function,
                operator=operator,
                before=code[start:end].decode(),
                after=after,
                start=start,
                end=end,
            )


def draw(mutants: Collection[Mutant], count: int, seed: int) -> list[Mutant]:
    """Return that many mutants of different lines, in an order that the seed decides.

    The order rests on what the code is, not on where it stands: while the code around it
    changes, or tests execute more lines, most of the same are drawn again.
    """

    def place(mutant: Mutant) -> bytes:
        return blake2b(f"{seed} {mutant.name}".encode()).digest()

    drawn: dict[tuple[str, int], Mutant] = {}
    for mutant in sorted(mutants, key=place):
        drawn.setdefault((mutant.path, mutant.line), mutant)
    return list(drawn.values())[:count]


def _inside_functions(tree: ast.AST, names: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Return each node of a function's body with the function's name, but for what only tells."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, Functions):
            inner = (*names, child.name)
            for statement in child.body:
                if isinstance(statement, Functions):
                    yield from _inside_functions(ast.Module([statement], []), inner)
                else:
                    yield from _walk(statement, inner)
        elif isinstance(child, ast.ClassDef):
            yield from _inside_functions(child, (*names, child.name))


def _walk(node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(node, ast.Raise | ast.JoinedStr) or _is_told(node):
        return
    if isinstance(node, Functions | ast.ClassDef):
        yield from _inside_functions(ast.Module([node], []), names)
        return
    yield ".".join(names), node
    for child in ast.iter_child_nodes(node):
        if isinstance(node, ast.AnnAssign) and child is node.annotation:
            continue
        yield from _walk(child, names)


def _is_told(node: ast.AST) -> bool:
    """Return whether a statement is a docstring or a line of the log."""
    if not isinstance(node, ast.Expr):
        return False
    call = node.value
    if not isinstance(call, ast.Call):
        return isinstance(call, ast.Constant)
    target = call.func
    return (
        isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id in LOGS
    )


def _changes(node: Any) -> Iterator[Change]:
    """Return the changes of a node."""
    change = CHANGES.get(type(node))
    return iter(()) if change is None else change(node)


def _compare(node: ast.Compare) -> Iterator[Change]:
    for operator, swaps in (("boundary", BOUNDARY), ("opposite", OPPOSITE)):
        for index, found in enumerate(node.ops):
            if type(found) in swaps:
                ops = [*node.ops[:index], swaps[type(found)](), *node.ops[index + 1 :]]
                yield operator, node, _code(node, ops=ops)


def _constant(node: ast.Constant) -> Iterator[Change]:
    if type(node.value) is int:
        yield "integer + 1", node, f"({node.value + 1})"
        yield "integer - 1", node, f"({node.value - 1})"


def _and_or(node: ast.BoolOp) -> Iterator[Change]:
    other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    yield "and/or", node, _code(node, op=other)


def _plus_minus(node: ast.BinOp) -> Iterator[Change]:
    if isinstance(node.op, ast.Add | ast.Sub):
        other = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
        yield "plus/minus", node, _code(node, op=other)


def _not(node: ast.UnaryOp) -> Iterator[Change]:
    if isinstance(node.op, ast.Not):
        yield "not dropped", node, f"({ast.unparse(node.operand)})"


def _call(node: ast.Expr) -> Iterator[Change]:
    if isinstance(node.value, ast.Call | ast.Await):
        yield "call dropped", node, "pass"


def _return(node: ast.Return) -> Iterator[Change]:
    if node.value is not None and not _is_none(node.value):
        yield "return None", node, "return None"


def _condition(node: ast.If | ast.IfExp) -> Iterator[Change]:
    yield "always true", node.test, "True"
    yield "always false", node.test, "False"


def _jump(node: ast.Break | ast.Continue) -> Iterator[Change]:
    yield "break/continue", node, "continue" if isinstance(node, ast.Break) else "break"


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _code(node: ast.expr, **fields: object) -> str:
    changed = copy(node)
    vars(changed).update(fields)
    return f"({ast.unparse(changed)})"


CHANGES: Mapping[type[ast.AST], Callable[[Any], Iterator[Change]]] = {
    ast.Compare: _compare,
    ast.Constant: _constant,
    ast.BoolOp: _and_or,
    ast.BinOp: _plus_minus,
    ast.UnaryOp: _not,
    ast.Expr: _call,
    ast.Return: _return,
    ast.If: _condition,
    ast.IfExp: _condition,
    ast.Break: _jump,
    ast.Continue: _jump,
}
"""What is done to a node, by its type."""
