"""In the place of a driver's threads: their jobs wait until the simulation does them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

Result = TypeVar("Result")


class QueuedJobs(Executor):
    """Jobs of a thread pool; any of them may be done next."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(  # type: ignore[override]
        self, work: Callable[..., Result], /, *arguments: Any, **options: Any
    ) -> Future[Result]:
        """Add a job."""
        future: Future[Result] = Future()
        self.jobs.append((future, lambda: work(*arguments, **options)))
        return future

    def do(self, place: int) -> None:
        """Do one of the jobs."""
        future, work = self.jobs.pop(place)
        try:
            future.set_result(work())
        except Exception as error:  # noqa: BLE001 - as in a thread
            future.set_exception(error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do all jobs."""
        while self.jobs:
            self.do(0)
