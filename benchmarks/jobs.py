"""Tuners on workers without checkpoints, a job at a time: ASHA's appendix A.1 and no more."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from given import LOSS

from dasktune.algos.base import Tuner
from dasktune.simulate.jobs import Mishaps
from dasktune.types import Decision, Extend, Register, Report

Job = tuple[float, int, int, int]
"""Priority, negated; its place among equals; trial; and how far it is trained."""


class Jobs:
    """Workers that train one trial each, always from step 0, and may be slow or dropped.

    A free worker takes the waiting job of the highest priority, of equals the first that was
    asked for; a job that was dropped waits in its old place. That is what
    ``dasktune.simulate(..., merge=False, resume=False)`` does at ten times the cost, since
    it keeps a plan: `stragglers` compares the two.

    Parameters
    ----------
    tuner
        What decides; its trials are those of `given.with_losses`.
    workers
        How many.
    mishaps
        What goes wrong.
    """

    def __init__(self, tuner: Tuner, *, workers: int, mishaps: Mishaps) -> None:
        self._tuner = tuner
        self._mishaps = mishaps
        self._idle = workers
        self._waiting: list[Job] = []
        self._running: list[tuple[float, int, Job, bool]] = []
        self._losses: dict[int, float] = {}
        self._counted = 0
        self.now = 0.0

    def run(self, seconds: float) -> list[float]:
        """Return when trials had been trained to `max_steps`, up to a time."""
        completed: list[float] = []
        while True:
            self._start_all()
            if not self._running or self._running[0][0] > seconds:
                return completed
            self.now, _, job, was_dropped = heappop(self._running)
            self._idle += 1
            _, _, trial, until = job
            if was_dropped:
                heappush(self._waiting, job)
                continue
            if until == self._tuner.max_steps:
                completed.append(self.now)
            loss = self._losses[trial]
            report = Report(trial=trial, step=until, metrics={LOSS: loss}, losses=(loss,))
            self._take(self._tuner.tell(report))

    def _start_all(self) -> None:
        if self._idle > len(self._waiting):
            self._take(self._tuner.ask(self._idle - len(self._waiting)))
        if self._idle > len(self._waiting):
            jobs = len(self._waiting)
            raise RuntimeError(
                f"workers must never be idle, got {jobs} jobs for {self._idle} of them"
            )
        while self._idle and self._waiting:
            job = heappop(self._waiting)
            *_, until = job
            factor, dropped = self._mishaps.draw(until)
            self._idle -= 1
            self._counted += 1
            at = self.now + min(until * factor, dropped)
            heappush(self._running, (at, self._counted, job, dropped < until * factor))

    def _take(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Register():
                    self._losses[decision.trial] = decision.sequences[LOSS](0)
                case Extend():
                    self._counted += 1
                    job = (-decision.priority, self._counted, decision.trial, decision.until)
                    heappush(self._waiting, job)
