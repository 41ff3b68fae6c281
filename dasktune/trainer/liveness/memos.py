"""Memos: dicts in which own code looks results up, and nothing else.

A dict is a memo if each use of its name is a look-up or a store of one key, the code computes the
stored value from the key, constants, and attributes that only a constructor assigns, and a miss
has no other effect. Then another set of keys changes no result. Names decide: all attributes of a
name count as one dict.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property
from types import BuiltinFunctionType, FunctionType, ModuleType

from dasktune.trainer.liveness.flow import captures_of
from dasktune.trainer.liveness.own_code import OwnCode
from dasktune.trainer.liveness.scopes import bindings, last_name

_BUILDING = frozenset({"__init__", "__post_init__", "__new__", "build"})
_IMPURE = frozenset(
    {"rand", "randn", "randint", "random", "normal", "uniform", "choice", "choices", "shuffle"}
    | {"permutation", "permuted", "sample", "standard_normal", "integers", "randrange", "gauss"}
    | {"time", "time_ns", "perf_counter", "monotonic", "now", "today", "utcnow", "urandom", "uuid"}
    | {"uuid1", "uuid4", "open", "input", "environ", "getenv", "getcwd", "next", "globals", "eval"}
    | {"locals", "vars", "exec", "getattr", "setattr", "id", "hash", "token_bytes", "token_hex"}
    | {"read", "readline", "get_state", "bernoulli", "multinomial", "randperm", "dropout"}
)
"""Names of functions whose result depends on more than their arguments."""

_FREE = frozenset(
    {"clone", "copy", "detach", "to", "numpy", "item", "tolist", "astype", "mean", "sum", "min"}
    | {"max", "std", "var", "abs", "flip", "float", "double", "long", "cpu", "cuda", "size", "dim"}
)
"""Methods that leave a cached value as it is."""

_ARRAYS = frozenset(
    {"zeros", "ones", "full", "arange", "linspace", "eye", "tensor", "as_tensor", "array"}
    | {"asarray", "from_numpy", "rand", "randn", "randint", "stack", "cat", "concatenate", "sin"}
    | {"cos", "tanh", "exp", "sqrt", "abs"}
)
"""Functions of NumPy and torch that make arrays."""

_SHAPING = frozenset({"reshape", "view", "flatten", "unsqueeze", "squeeze", "t", "prod"})
"""Methods of arrays that give arrays, beside those that leave a value as it is."""

_SPEAKING = frozenset({"print", "debug", "info", "warning"})
"""Functions whose effects decide no result."""

_CHANGING = frozenset(
    {"append", "add", "extend", "update", "insert", "pop", "remove", "clear", "discard", "write"}
    | {"popitem", "appendleft", "popleft", "setdefault", "put", "send", "sort", "reverse", "fill"}
)
"""Methods that change their object; so do those whose name ends in an underscore."""

_CACHES = frozenset({"lru_cache", "cache", "cached_property"})
_CONSTANT = (int, float, complex, str, bytes, bool, type(None), frozenset)
_NAMED = (FunctionType, BuiltinFunctionType, ModuleType, type)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Memos:
    """Decides by name which dicts and cached functions of own code are memos."""

    def __init__(self, own: OwnCode) -> None:
        self._own = own
        self._known: dict[tuple[str, str, str], bool] = {}
        self._pure: dict[str, bool] = {}
        self._tested = ""
        self._busy: set[str] = set()

    def is_attribute(self, name: str) -> bool:
        """Return whether all attributes of a name are memos, or pure cached properties."""
        return self.is_cached(name) or self._is_memo("attribute", name)

    def is_variable(self, name: str) -> bool:
        """Return whether a global or enclosing variable is a memo."""
        return self._is_memo("variable", name)

    def is_default(self, name: str, function: str) -> bool:
        """Return whether the default of a parameter is a memo."""
        return self._is_memo("default", name, function)

    def is_cached(self, name: str) -> bool:
        """Return whether each function of a name has a cache of Python, and is pure."""
        nodes = self._functions.get(name, [])
        kinds = [
            {last_name(getattr(item, "func", item)) for item in node.decorator_list}
            for node in nodes
        ]
        if not nodes or not all(kind & _CACHES for kind in kinds) or not self._is_pure(name):
            return False
        # What a caller changes in a part of the data would stay in the cache.
        return not any(map(self._reads_arrays, nodes)) or self._results_stay(name, set())

    # --------------------------------------------------------------------- uses of a dict

    def _is_memo(self, kind: str, name: str, function: str = "") -> bool:
        key = (kind, name, function)
        if key not in self._known:
            self._tested = name
            self._known[key] = self._own.is_whole and self._has_memo_uses(kind, name, function)
            self._tested = ""
            if not self._known[key]:
                self._pure.clear()  # it was decided as if the dict were a memo
        return self._known[key]

    def _has_memo_uses(self, kind: str, name: str, function: str) -> bool:
        functions = self._functions.get(function.rpartition(".")[2], [])
        nodes: Iterator[ast.AST] = iter(self._own.nodes)
        if kind == "default":
            nodes = (item for node in functions for item in ast.walk(node))
        made = any(_default_of(node, name) for node in functions) if kind == "default" else False
        for node in nodes:
            match node:
                case ast.Attribute(attr=attribute) if attribute == name and kind != "default":
                    pass
                case ast.Name(id=identifier) if identifier == name:
                    if kind == "attribute" and not self._is_in_class_body(node):
                        continue
                case ast.alias(name=imported, asname=str(other)) if imported == name != other:
                    return False
                case ast.Call(args=[*arguments]) if any(_is_text(item, name) for item in arguments):
                    return False
                case _:
                    continue
            creates = self._creates(node)
            made |= creates is True
            if creates is False or (creates is None and not self._is_looking_up(node)):
                return False
        return made

    def _creates(self, use: ast.AST) -> bool | None:
        """Return whether a use stores an empty dict; None of a use that only reads."""
        if isinstance(getattr(use, "ctx", None), ast.Load):
            return None
        parent = self._parents.get(use)
        above = None if parent is None else self._parents.get(parent)
        match parent, above:
            case ast.Tuple(elts=targets), ast.Assign(value=ast.Tuple(elts=values)):
                is_plain = len(targets) == len(values) and not any(
                    isinstance(each, ast.Starred) for each in (*targets, *values)
                )
                pairs = zip(targets, values, strict=False)
                return is_plain and any(a is use and _is_empty_dict(b) for a, b in pairs)
        match parent:
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                return _is_empty_dict(value)
            case ast.AnnAssign():
                return None
        return False

    def _is_looking_up(self, use: ast.AST) -> bool:
        parent = self._parents.get(use)
        above = None if parent is None else self._parents.get(parent)
        match parent:
            case ast.AnnAssign():
                return True
            case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[right]) if right is use:
                # Such as `if key not in memo:`; elsewhere the answer could decide anything.
                return isinstance(above, ast.If) and self._is_calm(above)
            case ast.Subscript(value=value, ctx=ast.Load()) if value is use:
                tried = self._around(parent, ast.Try)
                return self._leaves_alone(parent) and (tried is None or self._is_calm(tried))
            case ast.Subscript(value=value, slice=key, ctx=ast.Store()) if value is use:
                return isinstance(above, ast.Assign) and self._is_of_key(above.value, key, use)
            case ast.Attribute(value=value, attr=method) if value is use:
                if not isinstance(above, ast.Call) or above.func is not parent or above.keywords:
                    return False
                match method, above.args:
                    case ("get", [_]) | ("get", [_, ast.Constant(value=None)]):
                        return self._is_checked(above)
                    case "setdefault", [key, value]:
                        return self._is_of_key(value, key, use) and self._leaves_alone(above)
        return False

    def _is_checked(self, call: ast.Call) -> bool:
        """Return whether the only effect of a `get` that gives None is to store a value."""
        parent, function = self._parents.get(call), self._function_around(call)
        match parent:
            case ast.Assign(targets=[ast.Name(id=name)]) if function is not None:
                tests = [
                    node
                    for node in ast.walk(function)
                    if isinstance(node, ast.If) and _tests_for_none(node.test) == name
                ]
                return bool(tests) and all(map(self._is_calm, tests))
        return False

    def _is_calm(self, branch: ast.If | ast.Try) -> bool:
        """Return whether a branch that a miss decides only computes values, and stores them."""
        function = self._function_around(branch)
        if function is None:
            return False
        leaves = (ast.Return, ast.Break, ast.Continue, ast.Raise)
        region: list[ast.AST] = [branch]
        if any(isinstance(node, leaves) for node in ast.walk(branch)):
            region = [*function.body]  # the rest of the function is a branch, too
        return all(self._is_without_effect(n) for part in region for n in ast.walk(part))

    def _is_without_effect(self, node: ast.AST) -> bool:
        match node:
            case ast.Attribute(ctx=ast.Store() | ast.Del(), attr=name):
                return name == self._tested
            case ast.Subscript(ctx=ast.Store() | ast.Del(), value=value):
                return last_name(value) == self._tested
            case ast.Global() | ast.Nonlocal() | ast.Yield() | ast.YieldFrom() | ast.Await():
                return False
            case ast.Call(func=ast.Attribute(value=value)) if last_name(value) == self._tested:
                return True
            case ast.Call():
                if last_name(node.func) in _SPEAKING:
                    return True
                function = self._function_around(node)
                changed = "" if function is None else _changed_by(node)
                is_local = not changed or (function is not None and _makes(function, changed))
                return is_local and self.is_pure_call(node, "self")
            case ast.Expr(value=value):
                return isinstance(value, (ast.Call, ast.Constant))
        return True

    def _around(self, node: ast.AST, kind: type[ast.Try]) -> ast.Try | None:
        parent = self._parents.get(node)
        while parent is not None and not isinstance(parent, (*_FUNCTIONS, kind)):
            parent = self._parents.get(parent)
        return parent if isinstance(parent, kind) else None

    def _is_after_miss(self, store: ast.AST) -> bool:
        """Return whether a store runs only if the look-up of its key has failed."""
        child, parent = store, self._parents.get(store)
        while parent is not None and not isinstance(parent, _FUNCTIONS):
            match parent:
                case ast.ExceptHandler():
                    return True
                case ast.If(test=ast.Compare(ops=[ast.NotIn()], comparators=[right])):
                    if last_name(right) == self._tested and child in parent.body:
                        return True
                case ast.If(test=ast.Compare(ops=[ast.In()], comparators=[right])):
                    if last_name(right) == self._tested and child in parent.orelse:
                        return True
                case ast.If(test=test) if _tests_for_none(test) and child in parent.body:
                    return True
            child, parent = parent, self._parents.get(parent)
        return False

    def _leaves_alone(self, looked_up: ast.AST) -> bool:
        """Return whether the code changes no value that it has looked up, where it does so."""
        parent = self._parents.get(looked_up)
        match parent:
            case ast.Attribute(ctx=ast.Load(), attr=name):
                is_called = isinstance(self._parents.get(parent), ast.Call)
                return name in _FREE if is_called else self._leaves_alone(parent)
            case ast.Subscript(value=value) if value is looked_up:
                return isinstance(parent.ctx, ast.Load) and self._leaves_alone(parent)
            case ast.Attribute() | ast.AugAssign():
                return False
        return True

    def _is_in_class_body(self, node: ast.AST) -> bool:
        parent = self._parents.get(node)
        above = None if parent is None else self._parents.get(parent)
        return isinstance(above, ast.ClassDef) and isinstance(parent, (ast.Assign, ast.AnnAssign))

    # ----------------------------------------------------------------- values of the keys

    def _is_of_key(self, value: ast.expr, key: ast.expr, use: ast.AST) -> bool:
        """Return whether the code computes a stored value from its key and constants alone."""
        function = self._function_around(use)
        if function is None:
            return False
        known = _names_of_key(key)
        if isinstance(key, ast.Name):
            values = [*_values_of(function, key.id)]
            if len(values) == 1:
                known |= _names_of_key(values[0])
        owner = ast.unparse(use.value) if isinstance(use, ast.Attribute) else ""
        place, by = ast.unparse(use), ast.unparse(key)
        same = {f"{place}[{by}]", f"{place}.get({by})", f"{place}.get({by}, None)"}
        if not self._is_after_miss(use):
            same = set()
        return _Look(self, function, known, owner, frozenset(same)).depends_on_known(value)

    def _function_around(self, node: ast.AST) -> ast.FunctionDef | None:
        parent = self._parents.get(node)
        while parent is not None and not isinstance(parent, (*_FUNCTIONS, ast.Lambda)):
            parent = self._parents.get(parent)
        return parent if isinstance(parent, ast.FunctionDef) else None

    def is_pure(self, name: str) -> bool:
        """Return whether own functions have this name, and compute results from arguments alone."""
        return name in self._functions and self._is_pure(name)

    def _is_pure(self, name: str) -> bool:
        """Return whether each function of a name computes its result from arguments alone."""
        if name not in self._pure:
            self._pure[name] = True  # a call of itself adds nothing
            is_pure = all(map(self._is_pure_function, self._functions.get(name, [])))
            if not is_pure:  # others were decided as if it were pure
                self._pure = {other: False for other, pure in self._pure.items() if not pure}
            self._pure[name] = is_pure
        return self._pure[name]

    def _is_pure_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        nodes = [item for part in node.body for item in ast.walk(part)]
        known = {item.arg for item in ast.walk(node.args) if isinstance(item, ast.arg)}
        made = {name for item in nodes for name in bindings(item)}
        for item in nodes:
            if isinstance(item, (ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom, ast.Await)):
                return False
            if isinstance(item, ast.Subscript) and self.is_tested(last_name(item.value)):
                continue
            changed = ""
            if isinstance(item, ast.Call):
                changed = _changed_by(item)
            elif isinstance(item, (ast.Attribute, ast.Subscript)):
                changed = "" if isinstance(item.ctx, ast.Load) else _root(item) or "?"
            if changed and not _makes(node, changed):
                return False
        first = next(iter(node.args.args), None)
        owner = first.arg if first is not None and first.arg in ("self", "cls") else ""
        look = _Look(self, node, frozenset(known | made) - {owner}, owner, frozenset())
        look.reads_tested = True
        return all(look.depends_on_known(part) for part in node.body)

    def is_tested(self, name: str) -> bool:
        """Return whether a name is that of the dict in question."""
        return bool(name) and name == self._tested

    def is_constant_attribute(self, name: str) -> bool:
        """Return whether only constructors store an attribute, and nothing changes its items."""
        if name in _IMPURE:
            return False
        for node in self._own.nodes:
            if isinstance(node, ast.Attribute) and node.attr == name:
                parent = self._parents.get(node)
                function = self._function_around(node)
                if getattr(function, "name", "") in _BUILDING:
                    continue
                if not isinstance(node.ctx, ast.Load):
                    return False
                if isinstance(parent, ast.Subscript) and not isinstance(parent.ctx, ast.Load):
                    return False
                if isinstance(parent, ast.Attribute) and not self._leaves_alone(node):
                    return False
        return True

    def is_array(self, name: str) -> bool:
        """Return whether an attribute holds an array that only constructors make."""
        if name in self._busy or not self.is_constant_attribute(name):
            return False
        self._busy.add(name)
        stores = [
            node
            for node in self._own.nodes
            if isinstance(node, ast.Attribute)
            and node.attr == name
            and not isinstance(node.ctx, ast.Load)
        ]
        made = [
            node.value
            for node in self._own.nodes
            if isinstance(node, ast.Assign)
            and len(node.targets) == 1
            and isinstance(node.targets[0], ast.Attribute)
            and node.targets[0].attr == name
        ]
        is_array = bool(made) and len(made) == len(stores) and all(map(self._makes_array, made))
        self._busy.discard(name)
        return is_array

    def _makes_array(self, value: ast.expr) -> bool:
        match value:
            case ast.Subscript(value=inner) | ast.UnaryOp(operand=inner):
                return self._makes_array(inner)
            case ast.BinOp(left=left, right=right):
                return self._makes_array(left) or self._makes_array(right)
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return self.is_array(name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name)) if module in (
                "np",
                "numpy",
                "torch",
            ):
                scopes = [item.__globals__ for item in self._own.functions]
                things = [scope[module] for scope in scopes if module in scope]
                return name in _ARRAYS and all(
                    getattr(thing, "__name__", "") in ("numpy", "torch") for thing in things
                )
            case ast.Call(func=ast.Attribute(value=inner, attr=name)):
                return name in _FREE | _SHAPING | _ARRAYS and self._makes_array(inner)
        return False

    def _reads_arrays(self, function: ast.AST) -> bool:
        names = (node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute))
        return any(map(self.is_array, names))

    def _results_stay(self, name: str, seen: set[str]) -> bool:
        """Return whether no code changes what functions of a name return, as far as it goes."""
        if name in seen:
            return True
        seen.add(name)
        if name == "__getitem__":
            items = [item for node in self._own.nodes for item in _items_bound_by(node)]
            return all(self._stays(targets, node, seen) for targets, node in items)
        for node in self._own.nodes:
            if isinstance(node, ast.Call) and last_name(node.func) == name:
                parent = self._parents.get(node)
                match parent:
                    case ast.Assign(targets=targets):
                        if not self._stays(targets, node, seen):
                            return False
                    case ast.Return():
                        function = self._function_around(node)
                        if function is None or not self._results_stay(function.name, seen):
                            return False
                    case ast.BinOp() | ast.Compare():
                        pass
                    case _:
                        return False
        return True

    def _stays(self, targets: list[ast.expr], at: ast.AST, seen: set[str]) -> bool:
        """Return whether a function does not change what it has in variables, nor do others."""
        function = self._function_around(at)
        nodes = [item for target in targets for item in ast.walk(target)]
        if function is None or any(isinstance(n, (ast.Attribute, ast.Subscript)) for n in nodes):
            return False
        names = {item.id for item in nodes if isinstance(item, ast.Name)}
        return self._stays_in(function, names, seen)

    def _stays_in(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef, names: set[str], seen: set[str]
    ) -> bool:
        inside = [*ast.walk(function)]
        while more := {
            item.id
            for node in inside
            if isinstance(node, ast.Assign) and _is_part_of(node.value, names)
            for target in node.targets
            for item in ast.walk(target)
            if isinstance(item, ast.Name) and item.id not in names
        }:
            names |= more
        for node in inside:
            is_store = not isinstance(getattr(node, "ctx", None), (ast.Load, type(None)))
            match node:
                case ast.AugAssign(target=target) if _root(target) in names:
                    return False
                case ast.Attribute() | ast.Subscript() if is_store and _root(node) in names:
                    return False
                case ast.Call() if _changed_by(node) in names:
                    return False
                case ast.keyword(arg="out" | "inplace") | ast.Yield() | ast.YieldFrom():
                    return False
                case ast.Call(func=ast.Attribute(attr="append" | "extend" | "add"), args=[value]):
                    if _is_part_of(value, names):
                        return False
                case ast.Call() if any(_is_part_of(part, names) for part in _given(node)):
                    if not self._leave_alone(last_name(node.func), seen):
                        return False
                case ast.Return(value=ast.expr() as value) if _is_part_of(value, names):
                    if not self._results_stay(function.name, seen):
                        return False
        return True

    def _leave_alone(self, name: str, seen: set[str]) -> bool:
        """Return whether own functions of a name, and modules, do not change what they get."""
        for each in (name, "forward", "__call__"):
            if f"{each}()" in seen:
                continue
            seen.add(f"{each}()")
            for function in self._functions.get(each, []):
                given = {item.arg for item in ast.walk(function.args) if isinstance(item, ast.arg)}
                if not self._stays_in(function, given - {"self", "cls"}, seen):
                    return False
        return True

    def is_constant_global(self, name: str) -> bool:
        """Return whether a global variable is a function, class, module or constant."""
        if any(isinstance(node, ast.Global) and name in node.names for node in self._own.nodes):
            return False
        scopes = [item.__globals__ for item in self._own.functions]
        values = [scope[name] for scope in scopes if name in scope]
        return all(isinstance(value, (*_CONSTANT, *_NAMED)) for value in values)

    def is_pure_call(self, call: ast.Call, owner: str) -> bool:
        """Return whether the result of a call depends on its arguments alone."""
        name = last_name(call.func)
        if not name or name in _IMPURE or "rand" in name:
            return False
        if name in self._functions:
            return self._is_pure(name)
        if name in self._classes:
            return False
        match call.func:
            case ast.Attribute(value=value):
                # An object in an attribute, such as an open file or a generator.
                root = _root(value)
                return root is None or root != owner or not owner
        return True

    @property
    def subscripts_are_pure(self) -> bool:
        """Whether each own `__getitem__` is pure."""
        return self._is_pure("__getitem__")

    @cached_property
    def _parents(self) -> dict[ast.AST, ast.AST]:
        return {
            child: node
            for node in self._own.nodes
            for child in ast.iter_child_nodes(node)
            if not isinstance(child, ast.expr_context)
        }

    @cached_property
    def _functions(self) -> dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]]:
        functions: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
        for node in self._own.nodes:
            if isinstance(node, _FUNCTIONS):
                functions.setdefault(node.name, []).append(node)
        return functions

    @cached_property
    def _classes(self) -> frozenset[str]:
        return frozenset(node.name for node in self._own.nodes if isinstance(node, ast.ClassDef))


class _Look:
    """Looks whether expressions of one function depend on known names and constants alone."""

    def __init__(
        self,
        memos: Memos,
        function: ast.FunctionDef | ast.AsyncFunctionDef,
        known: frozenset[str],
        owner: str,
        same: frozenset[str],
    ) -> None:
        self._memos, self._function, self._known = memos, function, known
        self._owner, self._same = owner, same
        self._parameters = {i.arg for i in ast.walk(function.args) if isinstance(i, ast.arg)}
        self._seen: set[str] = set()
        self.reads_tested = False

    def depends_on_known(self, node: ast.AST) -> bool:
        """Return whether a value depends on known names and constants alone."""
        if isinstance(node, (ast.Subscript, ast.Call)) and ast.unparse(node) in self._same:
            return True
        if self._memos.is_tested(last_name(node)):
            return self.reads_tested
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                return self._is_known(name)
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner == self._owner:
                return self._memos.is_constant_attribute(name)
            case ast.Attribute(attr=name) if not self._memos.is_constant_attribute(name):
                return False
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name)) if (
                owner == self._owner
            ):
                if not self._memos.is_pure(name):
                    return False
                return all(map(self.depends_on_known, [*node.args, *node.keywords]))
            case ast.Call() if not (
                self._memos.is_pure_call(node, self._owner) or self._is_of_array(node)
            ):
                return False
            case ast.Subscript() if not (
                self._memos.subscripts_are_pure or self._is_of_array(node)
            ):
                return False
            case ast.Lambda(args=given, body=body) if not given.defaults and not given.kw_defaults:
                own = frozenset(i.arg for i in ast.walk(given) if isinstance(i, ast.arg))
                known = self._known | own
                inner = _Look(self._memos, self._function, known, self._owner, frozenset())
                return inner.depends_on_known(body)
            case ast.Lambda() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return False
            case ast.Yield() | ast.YieldFrom() | ast.Await():
                return False
        return all(map(self.depends_on_known, ast.iter_child_nodes(node)))

    def _is_of_array(self, node: ast.expr) -> bool:
        """Return whether an expression is a part, copy or mean of an array in an attribute."""
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in _FREE | _SHAPING:
                return self._is_of_array(value)
            case ast.Subscript(value=value):
                return self._is_of_array(value)
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                return bool(owner) and owner == self._owner and self._memos.is_array(name)
        return False

    def _is_known(self, name: str) -> bool:
        if name in self._known or name in self._seen:
            return True
        if name in self._parameters or name == self._owner:
            return False
        values = [*_values_of(self._function, name)]
        if not values:
            return self._memos.is_constant_global(name)
        self._seen.add(name)
        return all(map(self.depends_on_known, values))


def _items_bound_by(node: ast.AST) -> Iterator[tuple[list[ast.expr], ast.AST]]:
    """Yield the targets that get items, or what a loop over an object gives, and a node there."""
    match node:
        case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
            calls = {last_name(n.func) for n in ast.walk(value) if isinstance(n, ast.Call)}
            if not calls & {"parameters", "named_parameters", "range", "steps"}:
                yield [target], target
        case ast.Assign(targets=targets, value=ast.Subscript()):
            yield targets, node
        case ast.Assign(targets=targets, value=ast.Call(func=function)):
            if last_name(function) == "next":
                yield targets, node


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _is_part_of(value: ast.expr, names: set[str]) -> bool:
    """Return whether a value is one of these variables, a part of one, or holds one."""
    match value:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return any(_is_part_of(part, names) for part in parts)
        case ast.Dict(values=parts):
            return any(_is_part_of(part, names) for part in parts)
        case ast.IfExp(body=first, orelse=other):
            return _is_part_of(first, names) or _is_part_of(other, names)
        case ast.Call(func=ast.Attribute(value=inner)):
            return _is_part_of(inner, names)  # such as a view
    return _root(value) in names


def _makes(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> bool:
    """Return whether a function makes the object in a variable itself."""
    if any(item.arg == name for item in ast.walk(function) if isinstance(item, ast.arg)):
        return False
    values = [*_values_of(function, name)]
    outer = (ast.Name, ast.Attribute, ast.Subscript, ast.Yield)
    return bool(values) and not any(isinstance(value, outer) for value in values)


def _changed_by(call: ast.Call) -> str:
    """Return the variable that a call changes, such as `x` of ``x.append(1)``."""
    match call.func:
        case ast.Attribute(value=value, attr=name) if name in _CHANGING or name.endswith("_"):
            return _root(value) or "?"
    return ""


def _tests_for_none(test: ast.expr) -> str:
    """Return the variable of ``x is None``."""
    match test:
        case ast.Compare(
            left=ast.Name(id=name), ops=[ast.Is()], comparators=[ast.Constant(value=None)]
        ):
            return name
    return ""


def _values_of(function: ast.AST, name: str) -> Iterator[ast.expr]:
    """Yield the expressions that decide the value of a local variable, and what may change it."""
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=targets, value=value):
                if any(_binds(target, name) for target in targets):
                    yield value
            case ast.AugAssign(target=target, value=value) if _binds(target, name):
                yield value
            case ast.AnnAssign(target=target, value=ast.expr() as value) if _binds(target, name):
                yield value
            case ast.NamedExpr(target=target, value=value) if _binds(target, name):
                yield value
            case ast.For(target=target, iter=value) if _binds(target, name):
                yield value
            case ast.comprehension(target=target, iter=value) if _binds(target, name):
                yield value
            case ast.withitem(optional_vars=ast.expr() as target, context_expr=value) if _binds(
                target, name
            ):
                yield value
            case ast.Expr(value=value) if _names(value, name):
                yield value
            case ast.Import() | ast.ImportFrom() | ast.ExceptHandler() | ast.FunctionDef() if (
                name
                in [
                    bound
                    for item in (node, *getattr(node, "names", ()))
                    for bound in bindings(item)
                ]
                and node is not function
            ):
                yield ast.Yield()  # unknown
            case ast.pattern() if name in captures_of(node):
                yield ast.Yield()


def _binds(target: ast.expr, name: str) -> bool:
    """Return whether a store changes a variable, or an item or attribute of it."""
    if isinstance(target, (ast.Tuple, ast.List)):
        return any(_binds(item, name) for item in target.elts)
    return _root(target) == name


def _names(node: ast.AST, name: str) -> bool:
    return any(isinstance(item, ast.Name) and item.id == name for item in ast.walk(node))


def _root(node: ast.AST) -> str | None:
    """Return the variable at the beginning of a chain of attributes and items."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _names_of_key(key: ast.expr) -> frozenset[str]:
    """Return the names whose values a key tells apart."""
    match key:
        case ast.Name(id=name):
            return frozenset({name})
        case ast.Tuple(elts=parts):
            return frozenset().union(*map(_names_of_key, parts))
    return frozenset()


def _default_of(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> bool:
    """Return whether a parameter has an empty dict as its default."""
    given = function.args
    names = [item.arg for item in (*given.posonlyargs, *given.args)]
    pairs = dict(zip(reversed(names), reversed(given.defaults), strict=False))
    pairs |= {
        item.arg: value
        for item, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)
        if value is not None
    }
    return name in pairs and _is_empty_dict(pairs[name])


def _is_empty_dict(value: ast.expr) -> bool:
    match value:
        case ast.Dict(keys=[]):
            return True
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=[]):
            return True
        case ast.Call(keywords=[ast.keyword(arg="default_factory", value=ast.Name(id="dict"))]):
            return True
    return False


def _is_text(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == name
