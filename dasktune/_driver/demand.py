"""The demand of a run for workers: what its claim and its pools are told."""

from __future__ import annotations

from collections.abc import Iterable

from dasktune._driver.parts import Draining, Following, News, Part
from dasktune._driver.worker_demand import WorkerDemand, demand_of
from dasktune._engine.engine import Engine


class RunDemand(Part):
    """The workers that a run can use now or soon; while it is drained, none for new trials."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._is_draining = False

    def receive(self, news: News, now: float) -> Iterable[Following]:
        """Note that the run is drained."""
        self._is_draining |= isinstance(news, Draining)
        return ()

    @property
    def left(self) -> int | None:
        """Number of trials that the tuner would still begin; None if it is unknown."""
        return 0 if self._is_draining else self._engine.to_begin

    def at(self, now: float) -> WorkerDemand:
        """Return the demand at a time of the run, in seconds."""
        engine = self._engine
        return demand_of(engine.view, now, left=self.left, least=engine.least_workers)
