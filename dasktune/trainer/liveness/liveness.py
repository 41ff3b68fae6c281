"""Liveness of the paths that a probe names: which of them the next step overwrites unread."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from types import FunctionType
from typing import Literal
from weakref import WeakKeyDictionary

from dasktune.trainer.liveness.attributes import FramePlaces, Tracking, frame_of, unwrapped
from dasktune.trainer.liveness.clocks import Functions, times_of, timings_in, timings_of
from dasktune.trainer.liveness.flow import NOTHING, Live
from dasktune.trainer.liveness.loops import StepLoop, Variable, loop_of
from dasktune.trainer.liveness.memos import Memos
from dasktune.trainer.liveness.orders import names_in_order
from dasktune.trainer.liveness.own_code import OwnCode, is_generated, is_own
from dasktune.trainer.liveness.scopes import last_name, own_nodes

Next = Literal["train", "evaluate"]

_KEY = r"\[(?P<key>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")\]"
_VARIABLE = re.compile(rf"trainer\.variables{_KEY}(?P<rest>.*)", re.DOTALL)
_ATTRIBUTE = re.compile(r"trainer\.(?P<name>\w+)(?P<rest>.*)", re.DOTALL)
_GRADIENT = re.compile(r"\[[^\[\]]*\]\.grad")

_KEYS = re.compile(r"\[(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\]'\"]*)\]")
"""The keys in a path, which may hold dots."""

_WORD = re.compile(r"[A-Za-z_]\w*")

_FORBIDDEN = ("__getattr__", "__getattribute__", "__setattr__", "__delattr__")
"""Methods by which an attribute is more than a value."""

_EMPTY = frozenset({"empty", "empty_like", "new_empty"})
"""Functions that make arrays with what happens to be in memory."""

_READING_NOTHING = frozenset({"dasktune.trainer.base", "dasktune.trainer.torch"})
"""Modules of base classes that read no attributes by name but those that they have themselves."""

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
        self._known_to_clear: dict[tuple[str, Next], bool] = {}

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
            return bool(_GRADIENT.fullmatch(rest)) and self._clears(name, before)
        return False

    def is_memo(self, path: str) -> bool:
        """Return whether a path lies in a memo: own code only looks results up in it by key.

        Further or missing keys then change no result; a key with another value does. The path
        ``cache of f`` names the cache of a function with `functools.lru_cache`.
        """
        path = _plain(path)
        if self._function is not None and (match := _VARIABLE.fullmatch(path)):
            return self._memos.is_variable(str(ast.literal_eval(match["key"])))
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

    def is_made_empty(self, path: str) -> bool:
        """Return whether a path names an array that is made without contents, as `np.empty`."""
        match = _VARIABLE.fullmatch(path) or _ATTRIBUTE.fullmatch(path)
        if match is None or match["rest"]:
            return False
        name = match["name"] if "name" in match.groupdict() else ast.literal_eval(match["key"])
        return name in self._made_empty

    def is_unread(self, path: str) -> bool:
        """Return whether a path names a part of an attribute that no code reads.

        The attribute itself counts as read: to set an item, it must be there.
        """
        match = _ATTRIBUTE.fullmatch(_plain(path))
        return match is not None and bool(match["rest"]) and match["name"] in self._unread

    def is_in_order(self, path: str) -> bool:
        """Return whether own code looks through the parts of a value in their order."""
        names = _WORD.findall(path)
        return bool(names) and names[-1] in self._in_order

    def is_waited_for(self, path: str) -> bool:
        """Return whether own code waits for an event: then it only joins threads."""
        names = _WORD.findall(path)
        return bool(names) and names[-1] in self._waited_for

    @cached_property
    def _waited_for(self) -> frozenset[str]:
        calls = (node.func for node in self._own.nodes if isinstance(node, ast.Call))
        return frozenset(
            last_name(each.value) or ""
            for each in calls
            if isinstance(each, ast.Attribute) and each.attr == "wait"
        )

    @cached_property
    def _in_order(self) -> frozenset[str]:
        return names_in_order(self._own.trees)

    @property
    def decides_nothing(self) -> frozenset[str]:
        """The attributes that no code reads, and times."""
        return self._times | self._timings | self._unread

    @cached_property
    def timing_variables(self) -> frozenset[tuple[str, str]]:
        """The variables with dicts and lists of times, by the function with the steps."""
        return frozenset(
            (function.__code__.co_qualname, name)
            for function, loop in self._loops.items()
            for name in timings_in(loop.function, self._by_name)
        )

    @cached_property
    def _made_empty(self) -> frozenset[str]:
        """The attributes and variables all of whose arrays are made without contents."""
        made: set[str] = set()
        others: set[str] = set()
        for target, value in self._assignments:
            is_empty = isinstance(value, ast.Call) and last_name(value.func) in _EMPTY
            (made if is_empty else others).add(last_name(target))
        return frozenset(made - others)

    @property
    def _assignments(self) -> Iterator[tuple[ast.expr, ast.expr]]:
        for node in self._own.nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                        yield from zip(target.elts, node.value.elts, strict=False)
                    else:
                        yield target, node.value

    @cached_property
    def _unread(self) -> frozenset[str]:
        """The attributes of a trainer that no code reads: it only sets them, and items of them."""
        of_dasktune = {b.__module__ for b in self._class.__mro__ if not is_own(b)} - _BASES
        if self._function is not None or not self._is_plain or of_dasktune - _READING_NOTHING:
            return frozenset()
        _ = self._written
        if self._tracking.has_escaped:
            return frozenset()
        read = {str(n.value) for n in self._own.nodes if isinstance(n, ast.Constant)}
        stored = {
            id(node.value)
            for node in self._own.nodes
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
        }
        written: set[str] = set()
        for node in self._own.nodes:
            if isinstance(node, ast.Attribute):
                is_read = isinstance(node.ctx, ast.Load) and id(node) not in stored
                (read if is_read else written).add(node.attr)
        defined = {name for base in self._class.__mro__ for name in vars(base)}
        return frozenset(written - read - defined)

    def is_time(self, path: str) -> bool:
        """Return whether a path names an attribute that holds times, or a sum of them."""
        if path.startswith("trainer.") and path.removeprefix("trainer.") in self._times:
            return True
        match = _ATTRIBUTE.fullmatch(_plain(path))
        is_part = match is not None and (match["rest"] or path.startswith("len("))
        return bool(is_part) and match is not None and match["name"] in self._timings

    @cached_property
    def _times(self) -> frozenset[str]:
        definitions = map(self._own.definition, self._own.functions)
        return times_of(each for each in definitions if isinstance(each, ast.FunctionDef))

    @cached_property
    def _timings(self) -> frozenset[str]:
        """The attributes with dicts and lists of times, which no other object may have."""
        if self._function is not None or not self._is_plain:
            return frozenset()
        _ = self._written
        if self._tracking.has_escaped:
            return frozenset()
        definitions = [*map(self._own.definition, self._own.functions)]
        methods = [each for each in definitions if isinstance(each, ast.FunctionDef)]
        seen = {id(node) for method in methods for node in ast.walk(method)}
        read = {str(n.value) for n in self._own.nodes if isinstance(n, ast.Constant)}
        for node in self._own.nodes:
            if isinstance(node, ast.Attribute):
                is_own_one = isinstance(node.value, ast.Name) and node.value.id == "self"
                read |= set() if is_own_one and id(node) in seen else {node.attr}
        defined = {name for base in self._class.__mro__ for name in vars(base)}
        return timings_of(methods, self._by_name) - read - defined

    @cached_property
    def _by_name(self) -> Functions:
        """The own functions by name; None for methods, and where two have the same name."""
        functions: dict[str, ast.FunctionDef | None] = {}
        at_top = {id(item) for tree in self._own.trees for item in tree.body}
        for node in self._own.nodes:
            if isinstance(node, ast.FunctionDef):
                is_clear = id(node) in at_top and node.name not in functions
                functions[node.name] = node if is_clear else None
        return functions

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

    def _clears(self, name: str, before: Next) -> bool:
        """Return whether the gradients of an attribute are cleared; a module has one each."""
        key = name, before
        if key not in self._known_to_clear:
            self._known_to_clear[key] = self._clears_attribute(name, before)
        return self._known_to_clear[key]

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
