"""Values that a state lacks: kept beside it, and set in the trainer that has loaded it.

A `state_dict` may forget a number, a list or an array on which later steps depend. Where such a
value is plain, the resume is made whole in place of being refused: its proof keeps the value, and
a trainer that holds another one after loading gets it. The comparison follows all the same.

A value is plain if numbers, texts, arrays and containers of these are all of it. What shares an
object or memory with other parts is not kept, because it would no longer share it after loading.
Only attributes of own objects and own global variables are set: nobody knows what a library has
noted of its own attributes elsewhere. Global random generators are kept and set in the same way.
"""

from __future__ import annotations

import ast
import json
import re
from array import array
from base64 import b85decode, b85encode
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from dasktune.errors import CorruptCheckpointError, StateError
from dasktune.storage.codec import decode, encode
from dasktune.trainer.generators import (
    generator_state,
    global_states,
    is_generator,
    restore_generator,
    restore_global,
)
from dasktune.trainer.proof.reach import Reach
from dasktune.trainer.proof.reached_code import Holder
from dasktune.trainer.proof.texts import is_array, memory_of

Proof = Mapping[str, str]
"""Texts by path. Each begins with a letter that tells where the part comes from."""

KEPT = "&"
"""The place of the kept values in a proof; no path begins so."""

_MOST_NBYTES = 2**16
"""Bytes of all arrays that one proof keeps: they lie in the commit, beside its reports."""

_MOST_PARTS = 4096
_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_FACTORIES = {kind.__name__: kind for kind in (int, float, bool, str, list, dict, set, tuple)}
_SEQUENCES: dict[type, str] = {list: "list", tuple: "tuple", deque: "deque"}
_MAPPINGS: dict[type, str] = {
    dict: "dict",
    OrderedDict: "ordered",
    Counter: "counter",
    defaultdict: "defaultdict",
}
_SETS: dict[type, str] = {set: "set", frozenset: "frozenset"}
_ITERATORS = frozenset({type(iter([])), type(iter(())), type(iter("")), type(iter(range(0)))})
"""Iterators that tell what they iterate over, and where they are."""

_KINDS: dict[str, Any] = {name: kind for kind, name in [*_SEQUENCES.items(), *_MAPPINGS.items()]}
_SCALAR_TEXT = re.compile(r"(bool|int|float|complex|str|bytes|NoneType) (.*)", re.DOTALL)


class _UnkeepableError(Exception):
    """A value that no proof keeps."""


class Keeper:
    """Turns values into nodes that a proof can keep, up to a size.

    Parameters
    ----------
    arrays
        Those of the state, whose memory is not kept.
    """

    def __init__(self, arrays: Iterable[Any]) -> None:
        self._arrays = arrays
        self._nbytes = self._parts = 0
        self._nodes: list[tuple[str, Any]] = []

    def add(self, path: str, value: Any) -> None:
        """Keep the value at a path, if it is plain and there is room."""
        before = self._nbytes, self._parts
        try:
            node = self._node(value)
            if type(value) not in _SCALARS:
                encode({path: node})  # an array may be of a type that no state holds
            self._nodes.append((path, node))
        except (_UnkeepableError, StateError):
            self._nbytes, self._parts = before

    def add_state(self, path: str, state: Any) -> None:
        """Keep the state of a global random generator."""
        self._nodes.append((path, ("state", state)))

    @property
    def text(self) -> str:
        """All that is kept, as a text; empty if nothing is."""
        if not self._nodes:
            return ""
        snapshot = encode(dict(self._nodes))
        data = b85encode(snapshot.data.tobytes()).decode()
        return json.dumps([snapshot.text.decode(), data], separators=(",", ":"))

    def _node(self, value: Any) -> Any:
        """Return a value that a state can hold: scalars as they are, others with their kind."""
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise _UnkeepableError
        kind = type(value)
        if kind in _SCALARS or isinstance(value, np.generic):
            return value
        if kind in _SEQUENCES:
            items = [self._node(item) for item in value]
            extra = [value.maxlen] if kind is deque else []
            return (_SEQUENCES[kind], items, *extra)
        if kind in _MAPPINGS:
            pairs = [[self._node(key), self._node(item)] for key, item in value.items()]
            return (_MAPPINGS[kind], pairs, *_factory(value))
        if kind in _SETS:
            return _SETS[kind], {item for item in value if self._is_scalar(item)}
        if kind is bytearray:
            return "bytearray", bytes(value)
        if kind is range:
            return "range", value.start, value.stop, value.step
        if kind is array:
            return "array", value.typecode, value.tobytes()
        if kind in _ITERATORS:
            _, given, *position = value.__reduce__()
            # Since Python 3.12, that of a range has no position: its range is what is left.
            return "iterator", [self._node(item) for item in given], *(at or 0 for at in position)
        if is_generator(value):
            return "generator", generator_state(value)
        if is_array(value) and kind is np.ndarray:
            return "numbers", self._numbers(value)
        if is_array(value) and kind.__name__ in ("Tensor", "Parameter"):
            if value.grad_fn is not None:
                raise _UnkeepableError
            return "tensor", self._numbers(value.detach()), value.requires_grad, value.is_cpu
        raise _UnkeepableError

    @cached_property
    def _taken(self) -> set[int | None]:
        return {*map(memory_of, self._arrays)}

    def _is_scalar(self, value: Any) -> bool:
        if type(value) not in _SCALARS:
            raise _UnkeepableError
        return True

    def _numbers(self, value: Any) -> Any:
        self._nbytes += value.nbytes
        if self._nbytes > _MOST_NBYTES or memory_of(value) in self._taken:
            raise _UnkeepableError
        return value


def _factory(value: Any) -> list[str | None]:
    if type(value) is not defaultdict:
        return []
    factory = value.default_factory
    name = None if factory is None else getattr(factory, "__name__", "")
    if name is not None and _FACTORIES.get(name) is not factory:
        raise _UnkeepableError
    return [name]


# -------------------------------------------------------------------------------- setting


def set_kept(
    reach: Reach, proof: Proof, differing: Collection[str], *, sets_globals: bool
) -> list[str]:
    """Set what a trainer holds otherwise than the one that left a proof, where that is known.

    Parameters
    ----------
    reach
        That of the trainer, after all its parts were looked at.
    differing
        The paths of the parts that differ.
    sets_globals
        Whether nothing else in the process uses the global variables of own code.

    Returns
    -------
    list of str
        The paths that were set.
    """
    kept = nodes_of(proof.get(KEPT, ""))
    done: list[str] = []
    units = {unit for path in differing if (unit := _unit_of(path, kept, reach)) is not None}
    for unit in sorted(units):
        holder = _holder_of(unit, reach)
        if holder is None or unit in reach.shared or (holder.is_global and not sets_globals):
            continue
        try:
            node = kept[unit] if unit in kept else _scalar_of(proof.get(unit, ""))
            current = holder.space.get(holder.name) if isinstance(holder.space, dict) else None
            holder.set(value_of(node, current, reach.device))
        except (ValueError, TypeError, AttributeError, RuntimeError, LookupError, SyntaxError):
            continue  # then it stays a difference
        done.append(unit)
    return done


def set_generators(proof: Proof, names: Mapping[str, str], device: str) -> list[str]:
    """Set global random generators to the states that were kept.

    Parameters
    ----------
    names
        By path, the names in `global_states` of those that differ.

    Returns
    -------
    list of str
        The paths of those that were set.
    """
    kept = nodes_of(proof.get(KEPT, ""))
    states = {names[path]: kept[path][1] for path in names if path in kept}
    if states:
        restore_global({**global_states(device), **states}, device)
    return [path for path in names if path in kept]


def _unit_of(path: str, kept: Iterable[str], reach: Reach) -> str | None:
    """Return the path of the attribute or variable that holds a part."""
    path = path.removeprefix("len(").removesuffix(")") if path.startswith("len(") else path
    path = path.partition(" (")[0]
    for unit in kept:
        if path.startswith(unit) and path[len(unit) : len(unit) + 1] in ("", ".", "["):
            return unit
    unit = reach.unit_of.get(path, path)
    return unit if unit == path else None


def _holder_of(unit: str, reach: Reach) -> Holder | None:
    """Return where an attribute or variable is held; also one that is not set now."""
    known = reach.holders.get(unit)
    if known is not None:
        return known
    owner, _, name = unit.rpartition(".")
    space = reach.spaces.get(owner)
    return Holder(space, name) if space is not None and name.isidentifier() else None


def _scalar_of(text: str) -> Any:
    """Return the scalar that the text of a part shows.

    Examples
    --------
    >>> _scalar_of("~float inf"), _scalar_of("=str 'a'"), _scalar_of("~<i8 3")
    (inf, 'a', np.int64(3))
    """
    form, _, value = text[1:].partition(" ")
    if match := _SCALAR_TEXT.fullmatch(text[1:]):
        is_number = match[1] in ("float", "complex")
        made = {"float": float, "complex": complex}[match[1]](value) if is_number else None
        return made if is_number else ast.literal_eval(value)
    kind = np.dtype(form)
    return kind.type(float(value) if kind.kind == "f" else ast.literal_eval(value))


def is_scalar(text: str) -> bool:
    """Return whether the text of a part shows its whole value.

    Examples
    --------
    >>> is_scalar("~float 0.5"), is_scalar("~ndarray float64 (3,) 0123456789abcdef")
    (True, False)
    """
    form, _, value = text[1:].partition(" ")
    if len(value) == 32 and value.isalnum():
        return False  # a digest
    return _SCALAR_TEXT.fullmatch(text[1:]) is not None or form[0] in "<>|="


def nodes_of(text: str) -> dict[str, Any]:
    """Return the nodes of kept values by path.

    Raises
    ------
    CorruptCheckpointError
        If nobody can have kept them.
    """
    if not text:
        return {}
    try:
        document, data = json.loads(text)
        nodes = decode(json.loads(document), np.frombuffer(b85decode(data), np.uint8))
    except (TypeError, ValueError) as error:
        raise CorruptCheckpointError(f"kept values cannot be read: {error}") from error
    return nodes if isinstance(nodes, dict) else {}


def value_of(node: Any, current: Any, device: str) -> Any:
    """Return the value of a node: `current` with other contents where that is possible."""
    if not isinstance(node, tuple):
        return node
    kind, content, *extra = node
    made: Any
    match kind:
        case "numbers":
            return _array(content, current)
        case "tensor":
            return _tensor(content, current, device, *extra)
        case "generator":
            restore_generator(current, content)
            return current
        case "iterator":
            made = iter(*[value_of(item, None, device) for item in content])
            if extra:
                made.__setstate__(*extra)
            else:
                next(made, None)  # it had ended
            return made
        case "bytearray":
            made = bytearray(content)
        case "range":
            return range(content, *extra)
        case "array":
            made = array(content)
            made.frombytes(extra[0])
        case "set" | "frozenset":
            made = set(content) if kind == "set" else frozenset(content)
        case "list" | "tuple" | "deque":
            items = [value_of(item, None, device) for item in content]
            made = deque(items, extra[0]) if kind == "deque" else items
            made = tuple(items) if kind == "tuple" else made
        case _:
            made = _KINDS[kind](*[_FACTORIES.get(name) for name in extra])
            for key, item in content:
                made[value_of(key, None, device)] = value_of(item, None, device)
    return _moved(made, current)


def _moved(made: Any, current: Any) -> Any:
    """Return `current` with the contents of a new container, if it is one of the same kind."""
    most = [getattr(each, "maxlen", 0) for each in (made, current)]
    if type(current) is not type(made) or most[0] != most[1]:
        return made
    match current:
        case list() | bytearray() | array():
            current[:] = made
        case dict() | set():
            current.clear()
            current.update(made)
        case deque():
            current.clear()
            current.extend(made)
        case _:
            return made
    return current


def _array(content: Any, current: Any) -> Any:
    """Return `current` with other numbers if it has the same form, else the new array."""
    if type(current) is not np.ndarray or not current.flags.writeable:
        return content
    forms = [(each.dtype, each.shape, each.strides) for each in (content, current)]
    if forms[0] != forms[1]:
        return content
    current[...] = content
    return current


def _tensor(content: Any, current: Any, device: str, requires_grad: bool, is_on_cpu: bool) -> Any:
    """Return `current` with other numbers if it has the same form, else the new tensor.

    An optimizer may hold a tensor with gradients, so that no other one takes its place.
    """
    is_tensor = hasattr(current, "untyped_storage")
    forms = [(each.dtype, each.shape) for each in (content, current) if hasattr(each, "shape")]
    if is_tensor and forms[0] == forms[1] and current.requires_grad == requires_grad:
        current.detach().copy_(content)
        return current
    if requires_grad:
        raise ValueError("a tensor with gradients is not replaced")
    return content if is_on_cpu else content.to(device)
