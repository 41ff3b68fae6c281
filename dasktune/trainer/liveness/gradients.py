"""Gradients that a step clears before it uses them: calls that clear, and calls that may read.

The gradients of an object, such as `.optimizer`, are a place of their own. A call reads the
gradients of all objects if its name is one of `_USING`, if it gets or belongs to an object with
gradients, or if own code of that name does so.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cached_property

from dasktune.trainer.liveness.managers import looked_up
from dasktune.trainer.liveness.own_code import OwnCode, visible_values
from dasktune.trainer.liveness.scopes import bindings, last_name

_USING = frozenset(
    {"backward", "step", "run", "fit", "learn", "optimize", "minimize", "train_batch"}
    | {"train_on_batch", "training_step", "partial_fit", "unscale_"}
)
_NOT_USING = frozenset(
    {"zero_grad", "no_grad", "enable_grad", "set_grad_enabled", "requires_grad_", "is_grad_enabled"}
)
_OF_MODULES = frozenset(
    {"train", "eval", "to", "cpu", "cuda", "float", "double", "half", "bfloat16", "parameters"}
    | {"named_parameters", "modules", "children", "buffers", "named_buffers", "state_dict"}
)
"""Methods of modules and optimizers that leave the gradients alone."""

_LOOKING = frozenset({"len", "isinstance", "type", "id", "enumerate", "zip", "hasattr"})
_PASSED_ON = frozenset({"track", "to_device", "list", "tuple", "chain"})
"""Functions that give back what they get."""


class Gradients:
    """The uses of gradients in own code.

    The methods of the trainer do not count by their names, since the calls of them are followed.
    """

    def __init__(self, own: OwnCode, trainer_class: type | None) -> None:
        self._own = own
        order = () if trainer_class is None else trainer_class.__mro__
        self._followed = frozenset(base.__name__ for base in order)

    @cached_property
    def are_used_anywhere(self) -> bool:
        """Whether a forward pass may use gradients, or a method that Python calls by itself."""
        return any(name in ("forward", "call") or name[:2] == "__" for name in self._using)

    @cached_property
    def has_own_step(self) -> bool:
        """Whether own code defines a `step`, which may keep its closure."""
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        return any(isinstance(n, functions) and n.name == "step" for n in self._own.nodes)

    def are_returned_by(self, function: object) -> bool:
        """Return whether a function returns gradients, and leaves those of the objects alone.

        A hook, or own code of a backward pass, could use them all the same.
        """
        is_known = _is_returning(function) and "backward" not in self._using
        return is_known and not self._has_hooks

    @cached_property
    def _has_hooks(self) -> bool:
        names = {last_name(node.func) for node in self._own.nodes if isinstance(node, ast.Call)}
        return any("hook" in name and "forward" not in name for name in names)

    def uses(self, call: ast.Call) -> bool:
        """Return whether a call may read or add to gradients."""
        name = last_name(call.func)
        if name in self._using or (name not in _NOT_USING and _is_using(name)):
            return True
        match call.func:
            case ast.Attribute(value=value) if last_name(value) in self._objects:
                return name not in _OF_MODULES and name not in _NOT_USING
        if name in _LOOKING:
            return False
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        called = {id(n.func) for part in given for n in ast.walk(part) if isinstance(n, ast.Call)}
        return any(
            last_name(node) in self._objects and id(node) not in called
            for part in given
            for node in ast.walk(part)
        )

    def covered_by(self, name: str, trees: Sequence[ast.AST], trainer: bool) -> frozenset[str]:
        """Return the names of the modules all of whose parameters an optimizer has.

        Parameters
        ----------
        name
            Of the optimizer: an attribute of the trainer, or a variable.
        trainer
            Whether it is an attribute.
        """
        kind = ast.Attribute if trainer else ast.Name
        covered = [
            frozenset(_whole_modules(node.value, kind))
            for tree in trees
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            and any(isinstance(item, kind) and last_name(item) == name for item in node.targets)
        ]
        return frozenset.intersection(*covered) if covered else frozenset()

    @cached_property
    def _objects(self) -> frozenset[str]:
        """The names of the objects with gradients."""
        return frozenset(
            last_name(node.value)
            for node in self._own.nodes
            if isinstance(node, ast.Attribute)
            and node.attr in ("zero_grad", "parameters", "named_parameters")
        ) - {"self", ""}

    @cached_property
    def _using(self) -> frozenset[str]:
        """The names of methods and inner functions that use gradients, or call such a function."""
        calls: dict[str, set[str]] = {}
        followed = {
            id(item)
            for node in self._own.nodes
            if isinstance(node, ast.ClassDef) and node.name in self._followed
            for item in node.body
        }
        at_top = {id(item) for tree in self._own.trees for item in tree.body}
        unknown: set[str] = set()
        returning = {id(call.func) for call in self._returning}
        reached = [*map(self._own.definition, self._own.functions)]
        # With the functions that they define.
        nodes = (inner for node in reached if node is not None for inner in ast.walk(node))
        for node in nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                if id(node) in followed:
                    continue
                inner = [n for n in ast.walk(node) if id(n) not in returning]
                called = [n.func for n in inner if isinstance(n, ast.Call)]
                names = {last_name(each) for each in called if id(each) not in returning}
                names |= {"grad" for n in inner if reads_gradient(n)}
                calls.setdefault(node.name, set()).update(names)
                # The calls of functions of a module are followed, too.
                unknown |= set() if id(node) in at_top else {node.name}
        using: set[str] = set()
        while True:
            more = {
                n for n, called in calls.items() if any(map(_is_using, called)) or called & using
            }
            if more == using:
                return frozenset(using & unknown)
            using = more

    @property
    def _returning(self) -> Iterator[ast.Call]:
        """The calls of `torch.autograd.grad`."""
        for function in self._own.functions:
            node = self._own.definition(function)
            nodes = [] if node is None else [*ast.walk(node)]
            local = {name for item in nodes for name in bindings(item)}
            local |= {item.arg for item in nodes if isinstance(item, ast.arg)}
            values = visible_values(function)
            for item in nodes:
                if isinstance(item, ast.Call) and _is_returning(
                    looked_up(item.func, values, local)
                ):
                    yield item


def clears(call: ast.Call) -> ast.expr | None:
    """Return the object whose gradients a call removes."""
    match call:
        case ast.Call(func=ast.Attribute(value=value, attr="zero_grad"), args=[], keywords=[]):
            return value
        case ast.Call(
            func=ast.Attribute(value=value, attr="zero_grad"),
            args=[],
            keywords=[ast.keyword(arg="set_to_none", value=ast.Constant(value=True))],
        ):
            return value
    return None


def cleared_in_loop(statement: ast.stmt) -> ast.expr | None:
    """Return the module of ``for p in module.parameters(): p.grad = None``."""
    match statement:
        case ast.For(
            target=ast.Name(id=name),
            iter=ast.Call(func=ast.Attribute(value=value, attr="parameters"), args=[], keywords=[]),
            body=[
                ast.Assign(
                    targets=[ast.Attribute(value=ast.Name(id=owner), attr="grad")],
                    value=ast.Constant(value=None),
                )
            ],
            orelse=[],
        ) if owner == name:
            return value
    return None


def reads_gradient(node: ast.AST) -> bool:
    """Return whether an expression reads an attribute `grad`."""
    return isinstance(node, ast.Attribute) and node.attr == "grad" and _is_load(node)


def _is_returning(function: object) -> bool:
    """Return whether a function is `torch.autograd.grad`."""
    names = getattr(function, "__module__", ""), getattr(function, "__name__", "")
    return names == ("torch.autograd", "grad")


def _is_load(node: ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Load)


def _is_using(name: str) -> bool:
    return name in _USING or ("grad" in name and name not in _NOT_USING)


def _whole_modules(value: ast.expr, kind: type[ast.Attribute | ast.Name]) -> Iterator[str]:
    """Yield the modules whose parameters an optimizer gets, each with all of its parameters."""
    match value:
        case ast.Call(func=ast.Attribute(attr="track"), args=[inner]):
            yield from _whole_modules(inner, kind)
        case ast.Call(args=[parameters, *_]):
            yield from _parameters(parameters, kind)
        case ast.Call(keywords=[ast.keyword(arg="params", value=parameters), *_]):
            yield from _parameters(parameters, kind)


def _parameters(node: ast.expr, kind: type[ast.Attribute | ast.Name]) -> Iterator[str]:
    match node:
        case ast.Call(func=ast.Attribute(value=value, attr="parameters"), args=[], keywords=[]):
            if isinstance(value, kind):
                yield last_name(value)
        case ast.Call(func=function, args=parts) if last_name(function) in _PASSED_ON:
            for part in parts:
                yield from _parameters(part, kind)
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            for part in parts:
                yield from _parameters(part, kind)
        case ast.Starred(value=part):
            yield from _parameters(part, kind)
        case ast.BinOp(op=ast.Add()):
            yield from _parameters(node.left, kind)
            yield from _parameters(node.right, kind)
        case ast.Dict():
            for key, part in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "params":
                    yield from _parameters(part, kind)
