"""Attributes of a trainer, and gradients, that its methods and own functions read and write.

Calls of own methods and functions are followed. The name of a place is ``.x`` for the attribute
`x` of the trainer, and ``grad .x`` or ``grad x`` for the gradients of an attribute or variable.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from types import FunctionType, MemberDescriptorType
from typing import Any

from dasktune.trainer.liveness.flow import NOTHING, Exits, Flow, Function, Live
from dasktune.trainer.liveness.gradients import (
    Gradients,
    cleared_in_loop,
    clears,
    reads_gradient,
)
from dasktune.trainer.liveness.managers import looked_up
from dasktune.trainer.liveness.own_code import OwnCode, is_own, visible_values
from dasktune.trainer.liveness.reading import Reading
from dasktune.trainer.liveness.scopes import bindings, last_name, own_nodes

_SAVING = frozenset({"state_dict", "load_state_dict", "common_digest"})
_STEPPING = frozenset({"build", "setup", "train", "evaluate", "model_file"})
_BASE = ("Trainer", "dasktune.trainer.base")
_UNREAD = frozenset({"isinstance", "issubclass", "type", "id", "callable"})
"""Functions that look at a trainer, but at no attribute of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameNames:
    """The meaning of the names in a function.

    Parameters
    ----------
    aliases
        Variables that hold what an attribute, or a variable of a training function, holds.
    """

    trainer: str | None = None
    owner: type | None = None
    values: Mapping[str, Any]
    local: frozenset[str] = frozenset()
    aliases: Mapping[str, str]

    def place(self, node: ast.expr) -> str | None:
        """Return the place that an expression names."""
        match node:
            case ast.Name(id=name):
                return self.aliases.get(name)
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name == self.trainer:
                return f".{attribute}"
        return None

    def with_aliases(self, aliases: Mapping[str, str]) -> FrameNames:
        """Return the frame with these aliases."""
        return replace(self, aliases=aliases)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Callee:
    """An own function that code calls; a method has the class that defines it."""

    function: FunctionType
    owner: type | None = None
    is_certain: bool


class Tracking:
    """Follows the methods of a trainer; without a class, the functions of a training function.

    Attributes
    ----------
    always
        The attributes that a callback may read at any time.
    written
        The attributes that the code writes as a whole, and ``grad`` places that it clears.
    has_escaped
        Whether unknown code may read the attributes at any time.
    """

    def __init__(self, trainer_class: type | None, own: OwnCode) -> None:
        self.trainer_class, self.own = trainer_class, own
        self.gradients = Gradients(own, trainer_class)
        self.always: set[str] = set()
        self.written: set[str] = set()
        self.has_escaped = not own.is_whole
        self._results: dict[tuple[Any, ...], tuple[Live, Live]] = {}
        self._busy: set[object] = set()

    @cached_property
    def attributes(self) -> Live:
        """All attributes that own code names."""
        names: set[str] = set()
        for node in self.own.nodes:
            match node:
                case ast.Attribute(attr=name):
                    names.add(name)
                case ast.Call(func=ast.Name(), args=[_, ast.Constant(value=str(name)), *_]):
                    names.add(name)  # such as `setattr`
        return frozenset(f".{name}" for name in names)

    @cached_property
    def stored(self) -> frozenset[str]:
        """The names of the attributes that own code assigns."""
        return frozenset(
            node.attr
            for node in self.own.nodes
            if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)
        )

    @cached_property
    def all_gradients(self) -> Live:
        """The gradients of all objects that own code names."""
        nodes = self.own.nodes
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        return frozenset(f"grad {name}" for name in (*self.attributes, *names))

    def member(self, name: str, after: type | None = None) -> tuple[Any, type | None]:
        """Return a member of the trainer's class and the class that defines it."""
        order = () if self.trainer_class is None else self.trainer_class.__mro__
        start = order.index(after) + 1 if after in order else 0
        for base in order[start:]:
            if name in vars(base):
                return vars(base)[name], base
        return None, None

    def before_method(self, name: str, live: Live) -> Live:
        """Return the places live before a call of a method of the trainer."""
        member, owner = self.member(name)
        function, is_certain = unwrapped(member)
        if function is None or not is_own(function):
            reads_all = member is not None and getattr(owner, "__name__", "") != "Trainer"
            self.has_escaped |= member is not None and function is None
            if not reads_all:
                return live
            read = self.attributes if name in _SAVING else self.attributes | self.all_gradients
            return live | read
        before, _ = self.before(function, live, owner=owner)
        return before if is_certain else before | live

    def before(
        self,
        function: FunctionType,
        live: Live,
        *,
        trainer: str | None = None,
        owner: type | None = None,
        aliases: Mapping[str, str] | None = None,
    ) -> tuple[Live, Live]:
        """Return the places live before a call of a function, and all that it reads.

        Parameters
        ----------
        trainer
            The parameter that gets the trainer; of a method, by default the first.
        owner
            The class that defines the method; None of a function.
        """
        node = self.own.definition(function)
        if node is None:
            self.has_escaped = True
            return live | self.all_gradients, self.all_gradients
        if owner is not None and trainer is None:
            trainer = next(iter(_parameters(node)), None)
        given = tuple(sorted((aliases or {}).items()))
        key = (function.__code__, live, trainer, owner, given)
        if function.__code__ in self._busy:
            reads = self.attributes | self.all_gradients
            return live | reads, reads
        if key not in self._results:
            frame = frame_of(function, node, trainer=trainer, owner=owner, aliases=aliases or {})
            self._busy.add(function.__code__)
            self._results[key] = self._run(node, live, frame)
            self._busy.discard(function.__code__)
        return self._results[key]

    def _run(self, node: Function, live: Live, frame: FrameNames) -> tuple[Live, Live]:
        reading = Reading.of(node, NOTHING, frame.values, FramePlaces(self, frame))
        flow = Flow(reading)
        if isinstance(node, ast.Lambda):
            before = flow.expression(node.body, live)
        else:
            before = flow.block(node.body, live, Exits(returns=live))
        self.always |= reading.always
        reads = frozenset(reading.reads)
        return live | reads if _is_generator(node) else before, reads


@dataclass(frozen=True, slots=True)
class FramePlaces:
    """Which attributes and gradients the code of one function reads and writes; `Places`."""

    tracking: Tracking
    frame: FrameNames

    def statement(self, node: ast.stmt, live: Live, flow: Flow, reading: Reading) -> Live | None:
        """Return the places live before a loop that clears gradients; None for others."""
        module = cleared_in_loop(node)
        return None if module is None else self._cleared(module, live, flow)

    def expression(self, node: ast.AST, live: Live, flow: Flow, reading: Reading) -> Live | None:
        """Return the places live before an expression; None if others decide."""
        match node:
            case ast.Attribute() if self._is_trainer(node.value):
                return self._attribute(node, live, reading)
            case ast.Call():
                return self._call(node, live, flow, reading)
            case ast.Name(id=name) if name == self.frame.trainer:
                self.tracking.has_escaped = True
                return live
            case ast.Attribute(value=value) if reads_gradient(node):
                return flow.expression(value, live | reading.read(self.tracking.all_gradients))
            case ast.Constant(value="grad"):
                return live | reading.read(self.tracking.all_gradients)
        return None

    def _is_trainer(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id == self.frame.trainer

    def _attribute(self, node: ast.Attribute, live: Live, reading: Reading) -> Live:
        member, owner = self.tracking.member(node.attr)
        if not isinstance(node.ctx, ast.Load):
            if isinstance(member, property):
                return self._follow(member.fset, owner, live, reading)
            if hasattr(type(member), "__set__") and not isinstance(member, MemberDescriptorType):
                self.tracking.has_escaped = True
            self.tracking.written.add(f".{node.attr}")
            return live - {f".{node.attr}"}
        if isinstance(member, property):
            return self._follow(member.fget, owner, live, reading)
        if node.attr == "__dict__" or (is_own(type(member)) and hasattr(type(member), "__get__")):
            self.tracking.has_escaped = True
        if isinstance(member, cached_property):
            live |= self._follow(member.func, owner, live, reading)
        elif isinstance(member, FunctionType) or "__wrapped__" in getattr(member, "__dict__", {}):
            # The method is kept, and may be called at any time.
            self.tracking.always |= self._follow(member, owner, NOTHING, reading, reads_all=True)
        return live | reading.read(frozenset({f".{node.attr}"}))

    def _follow(
        self,
        member: object,
        owner: type | None,
        live: Live,
        reading: Reading,
        reads_all: bool = False,
    ) -> Live:
        """Return the places live before a call of a method without arguments."""
        function, is_certain = unwrapped(member)
        if function is None or not is_own(function) or owner is None:
            self.tracking.has_escaped |= function is None
            return live
        before, reads = self.tracking.before(function, live, owner=owner)
        reading.read(reads)
        if reads_all:
            return reads
        return before if is_certain else before | live

    def _call(self, node: ast.Call, live: Live, flow: Flow, reading: Reading) -> Live | None:
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if self._is_trainer(value):
                _, owner = self.tracking.member(name)
                if owner is not None and name not in self.tracking.stored:
                    return self._method(node, None, live, flow, reading)
            case ast.Call(
                func=ast.Attribute(value=ast.Call(func=ast.Name(id="super"), args=args), attr=name)
            ) if self.frame.trainer is not None:
                after = looked_up(args[0], self.frame.values, ()) if args else self.frame.owner
                self.tracking.has_escaped |= after is None
                _, owner = self.tracking.member(name, after)
                if owner is None:
                    return flow.expressions(node.args, live)
                return self._method(node, after, live, flow, reading)
            case ast.Call(
                func=ast.Name(id="getattr" | "hasattr" | "setattr" | "delattr" as kind),
                args=[ast.Name(id=name), ast.Constant(value=str(attribute)), *others],
            ) if name == self.frame.trainer:
                context = {"setattr": ast.Store(), "delattr": ast.Del()}.get(kind, ast.Load())
                target = ast.Attribute(value=ast.Name(id=name), attr=attribute, ctx=context)
                return flow.expressions([*others, target], live)
            case ast.Call(func=ast.Name(id="super")):
                self.tracking.has_escaped = True
            case ast.Call(func=ast.Attribute(attr="step"), args=[ast.Name(id=name)]) if (
                name in reading.in_place and not self.tracking.gradients.has_own_step
            ):
                return self._step(node, reading.in_place[name], live, flow, reading)
            case ast.Call(func=ast.Name(id=name)) if name in _UNREAD:
                others = [part for part in node.args if not self._is_trainer(part)]
                return flow.expressions(others, live)
        function = looked_up(node.func, self.frame.values, self.frame.local)
        inner, is_certain = unwrapped(function)
        if inner is not None and is_own(inner):
            callee = _Callee(function=inner, is_certain=is_certain)
            return self._into(callee, node, live, flow, reading)
        if self.tracking.gradients.are_returned_by(function):
            return flow.expressions([*node.args, *node.keywords], live)
        return self._with_gradients(node, live, flow, reading)

    def _method(
        self, node: ast.Call, after: type | None, live: Live, flow: Flow, reading: Reading
    ) -> Live | None:
        """Return the places live before a call of a method of the trainer, or of a base class."""
        name = last_name(node.func)
        member, owner = self.tracking.member(name, after)
        bound = None if isinstance(member, staticmethod) else owner
        function, is_certain = unwrapped(getattr(member, "__func__", member))
        if function is not None and is_own(function) and not isinstance(member, classmethod):
            callee = _Callee(function=function, owner=bound, is_certain=is_certain)
            return self._into(callee, node, live, flow, reading)
        if function is None or is_own(function):
            # An own decorator, which may keep the trainer, unless it is a class method.
            self.tracking.has_escaped |= not isinstance(member, classmethod)
            return self._with_gradients(node, live, flow, reading)
        is_base = owner is None or (owner.__name__, owner.__module__) == _BASE
        if name in _SAVING:
            live |= reading.read(self.tracking.attributes)
        elif name in _STEPPING and not is_base:
            live |= reading.read(self.tracking.attributes | self.tracking.all_gradients)
        return flow.expressions([*node.args, *node.keywords], live)

    def _into(
        self, callee: _Callee, node: ast.Call, live: Live, flow: Flow, reading: Reading
    ) -> Live | None:
        """Return the places live before a call of an own function."""
        definition = self.tracking.own.definition(callee.function)
        if definition is None:
            self.tracking.has_escaped = True
            return None
        given = _given(definition, node, skipped=callee.owner is not None)
        places = {name: self.frame.place(value) for name, value in given.items()}
        trainers = [name for name, value in given.items() if self._is_trainer(value)]
        trainer = trainers[0] if trainers and callee.owner is None else None
        before, reads = self.tracking.before(
            callee.function,
            live,
            trainer=trainer,
            owner=callee.owner,
            aliases={name: place for name, place in places.items() if place is not None},
        )
        reading.read(reads)
        if _is_generator(definition):  # its code runs later
            self.tracking.always |= reads
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
        others = [value for value in values if trainer is None or value is not given[trainer]]
        return flow.expressions(others, before if callee.is_certain else before | live)

    def _step(
        self,
        node: ast.Call,
        closures: tuple[Function, ...],
        live: Live,
        flow: Flow,
        reading: Reading,
    ) -> Live:
        """Return the places live before ``optimizer.step(closure)``, which first calls it."""
        gradients = self.tracking.all_gradients
        after, used = live | gradients, NOTHING
        for closure in closures:
            inner = replace(reading, reads=set())
            body = closure.body if isinstance(closure.body, list) else [ast.Expr(closure.body)]
            before = Flow(inner).block(body, after, Exits(returns=after))
            used |= before & gradients
            # Its variables are not those of this function: only the gradients count as cleared.
        arguments = flow.expressions([node.func, *node.args], live)
        return (arguments - gradients) | used

    def _with_gradients(
        self, node: ast.Call, live: Live, flow: Flow, reading: Reading
    ) -> Live | None:
        cleared = clears(node)
        if cleared is not None:
            return self._cleared(cleared, live, flow)
        if self.tracking.gradients.uses(node):
            live |= reading.read(self.tracking.all_gradients)
            return flow.expressions([node.func, *node.args, *node.keywords], live)
        return None

    def _cleared(self, value: ast.expr, live: Live, flow: Flow) -> Live:
        place = self.frame.place(value)
        if place is not None:
            self.tracking.written.add(f"grad {place}")
            live -= {f"grad {place}"}
        return flow.expression(value, live)


def frame_of(
    function: FunctionType,
    node: Function,
    *,
    trainer: str | None,
    owner: type | None,
    aliases: Mapping[str, str],
) -> FrameNames:
    """Return the meaning of the names of a function."""
    local, counts, assigned = _names_of(node)
    frame = FrameNames(
        trainer=trainer,
        owner=owner,
        values=visible_values(function),
        local=local,
        aliases={name: place for name, place in aliases.items() if name not in counts},
    )
    made = {name: place for name, value in assigned if (place := frame.place(value)) is not None}
    return frame.with_aliases({**frame.aliases, **made})


@lru_cache(maxsize=1024)
def _names_of(
    node: Function,
) -> tuple[frozenset[str], frozenset[str], tuple[tuple[str, ast.expr], ...]]:
    """Return the names that a function hides, those that it binds, and those bound once."""
    # The names of inner scopes, too: they hide global functions.
    local = {name for item in ast.walk(node) for name in bindings(item)}
    local |= {item.arg for item in ast.walk(node) if isinstance(item, ast.arg)}
    nodes = [*own_nodes(node.body)] if isinstance(node.body, list) else []
    counts = Counter(name for item in nodes for name in bindings(item))
    assigned = [
        (item.targets[0].id, item.value)
        for item in nodes
        if isinstance(item, ast.Assign)
        and isinstance(item.targets[0], ast.Name)
        and counts[item.targets[0].id] == 1
    ]
    return frozenset(local), frozenset(counts), tuple(assigned)


def unwrapped(member: object) -> tuple[FunctionType | None, bool]:
    """Return the function within library wrappers, and whether each call runs all of it once."""
    is_certain = True
    while True:
        inner = getattr(member, "__dict__", {}).get("__wrapped__")
        if isinstance(member, FunctionType) and inner is None:
            return member, is_certain
        if inner is None or is_own(member):
            return None, False
        home = member.__globals__.get("__name__", "") if isinstance(member, FunctionType) else ""
        is_certain = is_certain and home.partition(".")[0] in ("torch", "contextlib")
        member = inner


def _parameters(node: Function) -> list[str]:
    return [item.arg for item in (*node.args.posonlyargs, *node.args.args)]


def _given(node: Function, call: ast.Call, *, skipped: bool) -> dict[str, ast.expr]:
    """Return the arguments of a call by parameter, as far as they are known."""
    names = _parameters(node)[1 if skipped else 0 :]
    given: dict[str, ast.expr] = {}
    for name, value in zip(names, call.args, strict=False):
        if isinstance(value, ast.Starred):
            break
        given[name] = value
    known = {*names, *(item.arg for item in node.args.kwonlyargs)}
    given |= {item.arg: item.value for item in call.keywords if item.arg in known}
    return given


@lru_cache(maxsize=1024)
def _is_generator(node: Function) -> bool:
    if isinstance(node, ast.Lambda):
        return False
    nodes = own_nodes(node.body)
    is_async = isinstance(node, ast.AsyncFunctionDef)
    return is_async or any(isinstance(item, (ast.Yield, ast.YieldFrom)) for item in nodes)
