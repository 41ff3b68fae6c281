"""The attributes of objects that lie in slots; without torch, which a probe must not import."""

from __future__ import annotations


def slots(kind: type) -> list[str]:
    """Return the names of the attributes in slots of a class, also those of its bases."""
    groups = [getattr(base, "__slots__", ()) for base in kind.__mro__]
    names = [name for group in groups for name in ([group] if isinstance(group, str) else group)]
    return [name for name in names if name not in ("__dict__", "__weakref__")]
