"""The policy of workers that Dask has paused: a stage that they were sent would not begin."""

from __future__ import annotations

from dasktune.graph.events import Event, Paused
from dasktune.graph.placement import Placing
from dasktune.graph.policy import Policy


class PausedWorkers(Policy):
    """Gives nothing to workers whose memory is nearly full."""

    def __init__(self, placing: Placing) -> None:
        self.placing = placing
        self.workers: frozenset[str] = frozenset()

    @property
    def is_open(self) -> bool:
        """Whether a worker is paused."""
        return bool(self.workers)

    def received(self, event: Event) -> None:
        """Take the workers that are paused now in place of those of before."""
        if isinstance(event, Paused):
            self.workers = event.workers
            self.placing.note_all_idle()

    def cleared(self) -> None:
        """Forget which workers are paused."""
        self.workers = frozenset()

    def may_have_stages(self, worker: str) -> bool:
        """Whether a worker is not paused."""
        return worker not in self.workers
