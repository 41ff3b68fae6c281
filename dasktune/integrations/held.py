"""The attributes that users set on objects of a framework, as parts of a trainer's state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any


class HeldAttributes(Mapping[str, Any]):
    """The attributes that users have set on objects, by dotted name, as they are now.

    Parameters
    ----------
    holders
        By name: the object, and the names of the attributes that the framework gives it.
    skips
        Whether an attribute of an object is left out: ``skips(holder, name, value)``.

    Examples
    --------
    >>> class Counter: pass
    >>> counter = Counter()
    >>> counter.calls, counter.owner = 3, "framework"
    >>> held = HeldAttributes({"counter": (counter, {"owner"})}, skips=lambda *attribute: False)
    >>> held.put("counter.calls", 4)
    >>> dict(held)
    {'counter.calls': 4}
    """

    def __init__(
        self,
        holders: Mapping[str, tuple[Any, Collection[str]]],
        *,
        skips: Callable[[Any, str, Any], bool],
    ) -> None:
        self._holders = holders
        self._skips = skips

    def __getitem__(self, name: str) -> Any:
        path, _, attribute = name.rpartition(".")
        return vars(self._holders[path][0])[attribute]

    def __iter__(self) -> Iterator[str]:
        for path, (holder, own) in self._holders.items():
            for name, value in vars(holder).items():
                if name not in own and not self._skips(holder, name, value):
                    yield f"{path}.{name}"

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def put(self, name: str, value: Any) -> None:
        """Set an attribute."""
        path, _, attribute = name.rpartition(".")
        setattr(self._holders[path][0], attribute, value)
