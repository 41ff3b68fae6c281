"""The policy of several studies on one cluster: each has the workers that its share gives it.

Which workers these are is decided in `dasktune.graph.fair_shares`.
"""

from __future__ import annotations

from dasktune.graph.events import Event, Granted
from dasktune.graph.placement import Placing
from dasktune.graph.policy import Policy


class OwnWorkers(Policy):
    """Uses only the workers of this study.

    Attributes
    ----------
    workers
        Those of this study; all if None.
    """

    def __init__(self, placing: Placing) -> None:
        self.placing = placing
        self.workers: frozenset[str] | None = None

    @property
    def is_open(self) -> bool:
        """Whether there are other studies."""
        return self.workers is not None

    def received(self, event: Event) -> None:
        """Take the workers that this study has from now on."""
        if isinstance(event, Granted):
            self.workers = event.workers
            self.placing.count_slots()
            self.placing.note_all_idle()

    def cleared(self) -> None:
        """Forget that there were other studies."""
        self.workers = None

    def may_have_stages(self, worker: str) -> bool:
        """Whether this study has a worker."""
        return not self.is_withheld(worker)

    def is_withheld(self, worker: str) -> bool:
        """Whether another study has a worker, or may have others of its device.

        Idle processes of that study hold memory of the device, of which nothing is known here. So
        only the worker that stands for the device trains while there are other studies.
        """
        if self.workers is None:
            return False
        return worker not in self.workers or self.placing.is_extra(worker)
