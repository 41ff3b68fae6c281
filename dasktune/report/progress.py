"""The live display of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dasktune.runner import Snapshot


@contextmanager
def display(study: Any, engine: Any) -> Iterator[Callable[[Snapshot], None]]:
    """Show a run."""
    yield lambda snapshot: None
