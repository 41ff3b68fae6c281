"""A tree of stages by hand: each shared beginning is a task of Dask, and all are submitted at once.

Tasks hand states on in memory. Nothing is durable, and nothing is known of exact resumption.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed import Client, Future

Values = Mapping[str, Any]
"""The hyper-parameters of a step."""

TrainStage = Callable[[Any, Sequence[Values]], Any]
"""Gets the state before a stage, or None, and the values of each step; returns the state after."""


def run_tree(client: Client, train: TrainStage, schedules: Sequence[Sequence[Values]]) -> int:
    """Train schedules of one length; return the number of those that have a state at their end."""
    leaves: list[Future] = []
    _grow(client, train, None, 0, schedules, leaves)
    return len(client.gather(leaves))


def _grow(
    client: Client,
    train: TrainStage,
    parent: Future | None,
    first: int,
    schedules: Sequence[Sequence[Values]],
    leaves: list[Future],
) -> None:
    """Submit the steps that schedules share from one on, then each group that goes on alike."""
    end, steps = first, len(schedules[0])
    while end < steps and all(each[end] == schedules[0][end] for each in schedules):
        end += 1
    if end > first:
        parent = client.submit(train, parent, schedules[0][first:end], pure=False)
    if end == steps and parent is not None:
        leaves.extend([parent] * len(schedules))
        return
    parts: dict[str, list[Sequence[Values]]] = {}
    for each in schedules:
        parts.setdefault(repr(each[end]), []).append(each)
    for part in parts.values():
        _grow(client, train, parent, end, part, leaves)
