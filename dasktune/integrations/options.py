"""The text of options that users give to a framework: equal for equal options.

Fingerprints cover values and the user's own classes, and know nothing of what an object of an
installed package was made with. `text_of` shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType
from typing import Any

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_DEPTH = 4


def text_of(option: Any, depth: int = 0) -> str:
    """Return the type and the plain attributes of an option, and of what it holds.

    Examples
    --------
    >>> text_of({"precision": "bf16", "callbacks": [slice(1)]})
    "{'precision': 'bf16', 'callbacks': [builtins.slice()]}"
    """
    if isinstance(option, _PLAIN):
        return repr(option)
    if isinstance(option, Mapping):
        return "{" + ", ".join(f"{k!r}: {text_of(v, depth + 1)}" for k, v in option.items()) + "}"
    if isinstance(option, (list, tuple)):
        return "[" + ", ".join(text_of(each, depth + 1) for each in option) + "]"
    if isinstance(option, (type, FunctionType)):
        return f"{option.__module__}.{option.__qualname__}"
    kind = f"{type(option).__module__}.{type(option).__qualname__}"
    named = sorted(getattr(option, "__dict__", {}).items()) if depth < _DEPTH else []
    return f"{kind}({', '.join(f'{name}={text_of(v, depth + 1)}' for name, v in named)})"
