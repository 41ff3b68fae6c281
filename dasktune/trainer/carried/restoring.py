"""Nodes of a state as values: new ones, and objects made before the loop with new contents."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dasktune.errors import StateError, TrainerError
from dasktune.trainer.attributes import members
from dasktune.trainer.carried.kinds import FACTORIES, kind_of, parts
from dasktune.trainer.carried.originals import Path
from dasktune.trainer.carried.places import SavedParts
from dasktune.trainer.optional_torch import torch

_PENDING = object()


class Restorer:
    """Turns nodes into values; see `dasktune.trainer.carried.packing`.

    Parameters
    ----------
    before
        The objects in the variables of this process by path, before any is restored.
    """

    def __init__(
        self,
        before: Mapping[Path, Any],
        places: SavedParts,
        *,
        type_named: Callable[[str], type | None],
        device: str,
    ) -> None:
        self._before, self._places = before, places
        self._type_named, self._device = type_named, device
        self._made: list[Any] = []

    def value(self, node: Any) -> Any:
        """Return the value of a node.

        Raises
        ------
        StateError
            If the function did not make an object that the state needs.
        """
        if isinstance(node, (np.ndarray, torch.Tensor)):
            self._made.append(self._array(node))
            return self._made[-1]
        if not isinstance(node, dict):
            return node
        if "again" in node:
            return self._made[node["again"]]
        if "place" in node:
            try:
                return self._places.at(tuple(node["place"]))
            except KeyError as error:
                raise _not_there(node["place"]) from error
        if "original" in node:
            return self._original(node["original"])
        own = None if "kept" not in node else self._original(node["kept"])
        (kind,) = node.keys() - {"kept"}
        if own is not None and kind_of(own) != kind:
            raise _not_there(node["kept"])
        index = len(self._made)
        self._made.append(_PENDING)
        return self._filled(kind, node[kind], own, index)

    def _original(self, path: list[Any]) -> Any:
        try:
            return self._before[tuple(path)]
        except KeyError as error:
            raise _not_there(path) from error

    def _array(self, content: Any) -> Any:
        extra = content if isinstance(content, dict) else {"data": content}
        value = extra["data"]
        if isinstance(value, torch.Tensor) and "on_host" not in extra:
            value = value.to(self._device)
        if "axes" in extra:
            back = np.argsort(extra["axes"]).tolist()
            value = value.transpose(back) if isinstance(value, np.ndarray) else value.permute(back)
        return value

    def _filled(self, kind: str, content: Any, own: Any, index: int) -> Any:
        """Return the value of a kind with contents: `own`, if there is one, or a new one."""
        match kind:
            case "array" | "tensor" | "graph" | "leaf" | "parameter":
                made = self._tensor(kind, self._array(content), own)
            case "tuple":
                made = tuple(map(self.value, content))
                made = made if own is None else own  # its parts are as they were, or restored
            case "named":
                items = [*map(self.value, content["items"])]
                made = own if own is not None else self._named(content["class"], items)
            case "frozenset":
                made = frozenset(content)
            case _:
                made = self._container(kind, content) if own is None else own
                self._made[index] = made
                self._fill(made, kind, content)
        self._made[index] = made
        return made

    def _tensor(self, kind: str, content: Any, own: Any) -> Any:
        if own is None:
            if kind == "parameter":
                return torch.nn.Parameter(content)
            if kind == "graph":
                return without_graph(content)
            return content.requires_grad_() if kind == "leaf" else content
        if content.shape != own.shape or content.dtype != own.dtype:
            raise StateError(
                "state['variables']",
                f"an array made before the loop must have the shape {tuple(content.shape)}, got "
                f"{tuple(own.shape)}",
            )
        if kind == "array":
            own[...] = content
        else:
            with torch.no_grad():
                own.copy_(content)
        return own

    def _named(self, name: str, items: list[Any]) -> Any:
        made = self._type_named(name)
        if made is None or not issubclass(made, tuple) or not hasattr(made, "_fields"):
            raise StateError("state['variables']", f"the function has no named tuple {name!r}")
        return made(*items)

    @staticmethod
    def _container(kind: str, content: Any) -> Any:
        match kind:
            case "list":
                return []
            case "dict":
                return {}
            case "set":
                return set()
            case "bytearray":
                return bytearray()
            case "counter":
                return Counter()
            case "ordered":
                return OrderedDict()
            case "defaultdict":
                return defaultdict(FACTORIES.get(content["factory"] or ""))
            case "deque":
                return deque(maxlen=content["maxlen"])
        raise StateError("state['variables']", f"has an unknown kind of value {kind!r}")

    def _fill(self, made: Any, kind: str, content: Any) -> None:
        """Give a container its contents; those of its parts first, which may be its own."""
        match kind:
            case "list":
                made[:] = [*map(self.value, content)]
            case "bytearray":
                made[:] = content
            case "set":
                made.clear()
                made.update(content)
            case "deque":
                items = [*map(self.value, content["items"])]
                made.clear()
                made.extend(items)
            case "object":
                self._fill_object(made, {name: self.value(node) for name, node in content})
            case _:
                self._fill_mapping(made, kind, content)

    def _fill_mapping(self, made: Any, kind: str, content: Any) -> None:
        pairs = content if isinstance(content, list) else content["items"]
        items = [(self.value(key), self.value(part)) for key, part in pairs]
        made.clear()
        for key, part in items:
            made[key] = part
        if kind == "ordered" and content["metadata"] is not None:
            made._metadata = self.value(content["metadata"])

    @staticmethod
    def _fill_object(made: Any, values: Mapping[str, Any]) -> None:
        for name, _ in members(made):
            if name not in values:
                object.__delattr__(made, name)
        for name, value in values.items():
            object.__setattr__(made, name, value)


def without_graph(content: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose gradients raise an error, in place of one that a graph computed."""

    class LostGraph(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, value: Any) -> Any:
            return value.clone()

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            raise TrainerError(
                "a gradient must not go through a tensor that an earlier step has computed, where "
                "a trial goes on from a state: the state has its numbers alone; call detach()"
            )

    return LostGraph.apply(content.requires_grad_())  # type: ignore[no-any-return,no-untyped-call]


def object_at(path: Path, variables: Mapping[Path, Any]) -> Any:
    """Return the object at a path in variables by scope and name.

    Raises
    ------
    StateError
        If there is none.
    """
    try:
        item = variables[path[:2]]
        for key in path[2:]:
            item = dict(parts(item, kind_of(item)))[key]
    except KeyError as error:
        raise _not_there(path) from error
    return item


def _not_there(path: Sequence[Any]) -> StateError:
    return StateError(
        f"state['variables'] at {list(path)!r}",
        "the function has not made this object before its loop, as it had when the state was saved",
    )
