"""Liveness of the paths that a probe names: which of them the next step overwrites unread."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from types import FunctionType
from typing import Literal
from weakref import WeakKeyDictionary

from dasktune.trainer.liveness.attributes import FramePlaces, Tracking, frame_of, unwrapped
from dasktune.trainer.liveness.clocks import times_of
from dasktune.trainer.liveness.flow import NOTHING, Live
from dasktune.trainer.liveness.loops import StepLoop, Variable, loop_of
from dasktune.trainer.liveness.memos import Memos
from dasktune.trainer.liveness.own_code import OwnCode, is_generated, is_own
from dasktune.trainer.liveness.scopes import own_nodes

Next = Literal["train", "evaluate"]

_KEY = r"\[(?P<key>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")\]"
_VARIABLE = re.compile(rf"trainer\.variables{_KEY}(?P<rest>.*)", re.DOTALL)
_ATTRIBUTE = re.compile(r"trainer\.(?P<name>\w+)(?P<rest>.*)", re.DOTALL)
_GRADIENT = re.compile(r"\[[^\[\]]*\]\.grad")

_KEYS = re.compile(r"\[(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\]'\"]*)\]")
"""The keys in a path, which may hold dots."""

_FORBIDDEN = ("__getattr__", "__getattribute__", "__setattr__", "__delattr__")
"""Methods by which an attribute is more than a value."""

_BASES = frozenset({"abc", "typing", "builtins"})
"""Modules of harmless base classes, beside those of dasktune."""

_KNOWN: WeakKeyDictionary[type, Liveness] = WeakKeyDictionary()


class Liveness:
    """The values that the next step of a trainer overwrites before it reads them.

    The analysis reads source code and runs none. A value counts as dead only if the code proves
    it; of a class with unknown bases, or a trainer that other code may hold, nothing is dead.
    """

    def __init__(self, trainer_class: type) -> None:
        self._class = trainer_class
        is_function = any(base.__name__ == "FunctionTrainer" for base in trainer_class.__mro__)
        given = getattr(trainer_class, "function", None) if is_function else None
        self._function, _ = unwrapped(given)
        others = () if self._function is None else (self._function,)
        self._own = OwnCode(trainer_class, *others)

    @classmethod
    def of(cls, trainer_class: type) -> Liveness:
        """Return the liveness of a trainer class; it is analysed once."""
        if trainer_class not in _KNOWN:
            _KNOWN[trainer_class] = cls(trainer_class)
        return _KNOWN[trainer_class]

    def is_dead(self, path: str, *, before: Next) -> bool:
        """Return whether the next step, or evaluation, overwrites a value before it reads it."""
        path = _plain(path)
        if self._function is not None and path == "trainer.variables":
            return True  # the variables come one by one
        if (match := _VARIABLE.fullmatch(path)) and self._function is not None:
            name, rest = str(ast.literal_eval(match["key"])), match["rest"]
            if all(variable.kind == "dead" for variable in self._variables.get(name, [_UNKNOWN])):
                return True
            return bool(_GRADIENT.fullmatch(rest)) and self._clears_variable(name)
        if (match := _ATTRIBUTE.fullmatch(path)) and self._function is None:
            name, rest = match["name"], match["rest"]
            if self._is_dead_attribute(name, before):
                return True
            return bool(_GRADIENT.fullmatch(rest)) and self._clears_attribute(name, before)
        return False

    def is_memo(self, path: str) -> bool:
        """Return whether a path lies in a memo: own code only looks results up in it by key.

        Further or missing keys then change no result; a key with another value does. The path
        ``cache of f`` names the cache of a function with `functools.lru_cache`.
        """
        path = _plain(path)
        if match := re.match(r"cache of ([\w.<>]+)$", path):
            return self._memos.is_cached(match[1].rpartition(".")[2])
        if match := re.match(r"default (\w+) of ([\w.<>]+)", path):
            return self._memos.is_default(match[1], match[2])
        if match := re.match(r"variable (\w+) of ", path):
            return self._memos.is_variable(match[1])
        first, *names = _KEYS.sub("", path).split(".")
        if first.startswith("global "):
            last = names[0] if names else first.removeprefix("global ")
            return self._memos.is_variable(last) or any(map(self._memos.is_attribute, names))
        return any(map(self._memos.is_attribute, names))

    def reads(self, path: str) -> bool | None:
        """Return whether own code reads an attribute, variable or global of this name anywhere."""
        path = _plain(path)
        match = _VARIABLE.fullmatch(path)
        if match is not None and self._function is not None:
            name = str(ast.literal_eval(match["key"])).rpartition(".")[2]
        elif match := re.match(r"(?:trainer\.|global )([\w.]+)", path):
            name = match[1].rpartition(".")[2]
        else:
            return None
        return name in self._names_read

    def is_time(self, path: str) -> bool:
        """Return whether a path names an attribute that holds times, or a sum of them."""
        return path.startswith("trainer.") and path.removeprefix("trainer.") in self._times

    @cached_property
    def _times(self) -> frozenset[str]:
        definitions = map(self._own.definition, self._own.functions)
        return times_of(each for each in definitions if isinstance(each, ast.FunctionDef))

    def cleared(self, before: Next) -> frozenset[str]:
        """Return the paths of objects whose gradients are removed before anything reads them.

        Such as ``trainer.optimizer``, or ``trainer.variables['optimizer']``: the gradients of all
        parameters of this optimizer or module are dead.
        """
        if self._function is not None:
            loops = self._loops.values()
            return frozenset(
                f"trainer.variables[{name!r}]" for loop in loops for name in self._cleared_by(loop)
            )
        places = self._cleared_attributes(before)
        return frozenset(f"trainer{place.removeprefix('grad ')}" for place in places)

    # ------------------------------------------------------------------- trainer classes

    @cached_property
    def _memos(self) -> Memos:
        return Memos(self._own)

    @cached_property
    def _tracking(self) -> Tracking:
        return Tracking(None if self._function is not None else self._class, self._own)

    @cached_property
    def _is_plain(self) -> bool:
        return type(self._class).__module__ in _BASES and all(
            not any(name in vars(base) for name in _FORBIDDEN)
            if is_own(base)
            else base.__module__.partition(".")[0] in _BASES | {"dasktune"}
            for base in self._class.__mro__
            if base is not object
        )

    @cached_property
    def _live(self) -> Mapping[str, Live]:
        """The places live before `train` and before `evaluate`."""
        tracking = self._tracking
        saved = tracking.before_method("state_dict", NOTHING)
        saved |= tracking.before_method("model_file", NOTHING)
        train: Live = NOTHING
        while True:
            after = saved | train
            stepped = tracking.before_method("train", after | self._before_evaluate(after))
            again = train | stepped | tracking.before_method("setup", stepped)
            if again == train:
                return {"train": train, "evaluate": self._before_evaluate(saved | train)}
            train = again

    def _before_evaluate(self, live: Live) -> Live:
        return self._tracking.before_method("evaluate", live)

    @cached_property
    def _written(self) -> frozenset[str]:
        """The places that steps write; also notes the callbacks and escapes of other methods."""
        _ = self._live
        written = frozenset(self._tracking.written)
        for base in self._class.__mro__:
            if is_own(base):
                for member in vars(base).values():
                    if is_generated(member, base):
                        continue
                    function, _ = unwrapped(getattr(member, "fget", member))
                    if function is not None and is_own(function):
                        self._tracking.before(function, NOTHING, owner=base)
        return written

    def _is_dead_attribute(self, name: str, before: Next) -> bool:
        place = f".{name}"
        if not self._is_plain or place not in self._written or self._tracking.has_escaped:
            return False
        return place not in self._live[before] and place not in self._tracking.always

    def _cleared_attributes(self, before: Next) -> frozenset[str]:
        tracking = self._tracking
        if not self._is_plain or tracking.gradients.are_used_anywhere:
            return frozenset()
        written = self._written
        if tracking.has_escaped:
            return frozenset()
        unused = written - self._live[before] - tracking.always
        return frozenset(
            place
            for place in unused
            if place.startswith("grad .") and place.removeprefix("grad ") not in written
        )

    def _clears_attribute(self, name: str, before: Next) -> bool:
        if f".{name}" in self._written:
            return False
        cleared = [place.removeprefix("grad .") for place in self._cleared_attributes(before)]
        gradients, trees = self._tracking.gradients, self._own.trees
        return name in cleared or any(
            name in gradients.covered_by(other, trees, trainer=True) for other in cleared
        )

    # ---------------------------------------------------------------- training functions

    @cached_property
    def _loops(self) -> Mapping[FunctionType, StepLoop]:
        steppers = {"steps"}
        for function in self._own.functions:
            node = self._own.definition(function)
            nodes = [*own_nodes(node.body)] if isinstance(node, ast.FunctionDef) else []
            if any(isinstance(item, (ast.Yield, ast.YieldFrom)) for item in nodes) and any(
                isinstance(item, ast.Attribute) and item.attr == "steps" for item in nodes
            ):
                steppers.add(function.__name__)
        loops = {}
        for function in self._own.functions:
            loop = loop_of(
                function.__code__,
                namespace=function.__globals__,
                steppers=steppers,
                places=lambda node, function=function: self._places(function, node),  # type: ignore[misc]
            )
            if loop is not None:
                loops[function] = loop
        return loops

    def _places(self, function: FunctionType, node: ast.FunctionDef) -> FramePlaces:
        names = function.__code__.co_varnames + function.__code__.co_cellvars
        frame = frame_of(function, node, trainer=None, owner=None, aliases={})
        aliases = {**frame.aliases, **{name: name for name in names}}
        return FramePlaces(self._tracking, frame.with_aliases(aliases))

    @cached_property
    def _variables(self) -> Mapping[str, list[Variable]]:
        variables: dict[str, list[Variable]] = defaultdict(list)
        for function, loop in self._loops.items():
            for name, variable in loop.variables.items():
                variables[name].append(variable)
                variables[f"{function.__code__.co_name}.{name}"].append(variable)
        for function in self._own.functions:
            if function.__name__ == "__next__":  # it may pause in the middle of a loop
                for name in function.__code__.co_varnames:
                    variables[name].append(_UNKNOWN)
        return dict(variables)

    def _cleared_by(self, loop: StepLoop) -> frozenset[str]:
        tracking = self._tracking
        if tracking.gradients.are_used_anywhere:
            return frozenset()
        return frozenset(
            name
            for name, variable in loop.variables.items()
            if variable.kind == "constant"
            and f"grad {name}" in tracking.written
            and f"grad {name}" not in loop.live | tracking.always
        )

    def _clears_variable(self, name: str) -> bool:
        """Return whether each loop with a variable clears its gradients."""
        loops = [loop for loop in self._loops.values() if name in loop.variables]
        return bool(loops) and all(self._clears_in(loop, name) for loop in loops)

    def _clears_in(self, loop: StepLoop, name: str) -> bool:
        cleared = self._cleared_by(loop)
        if loop.variables[name].kind != "constant":
            return False
        covered = self._tracking.gradients.covered_by
        return name in cleared or any(
            name in covered(other, [loop.function], trainer=False) for other in cleared
        )

    @cached_property
    def _names_read(self) -> frozenset[str]:
        names: set[str] = set()
        for node in self._own.nodes:
            match node:
                case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
                    names.add(name)
                case ast.AugAssign(target=ast.Name(id=name) | ast.Attribute(attr=name)):
                    names.add(name)
                case ast.Constant(value=str(name)):
                    names.add(name)
        return frozenset(names)


_UNKNOWN = Variable(kind="carried")


def _plain(path: str) -> str:
    """Return the path of a value whose length or iterator a path names."""
    path = path.removesuffix(" (an iterator)")
    return path[len("len(") : -1] if path.startswith("len(") and path.endswith(")") else path
