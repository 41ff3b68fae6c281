"""Collect the facts on a cluster, its workers, a store and a database.

This module takes time, calls workers and decides nothing; `dasktune.doctor.checks` decides.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import cloudpickle
from distributed import Client

from dasktune._cluster.pools import PoolStatus, elastic_of
from dasktune._engine.timeouts import CHECK_GRACE_SECONDS, WORKERS_SECONDS
from dasktune.doctor import process, storage, study
from dasktune.doctor.facts import (
    Device,
    Facts,
    Look,
    Offset,
    StoreFacts,
    Torch,
    WorkerFacts,
)
from dasktune.doctor.study import CheckedStudy
from dasktune.errors import ClusterError
from dasktune.storage.layout import probe_folder
from dasktune.storage.redaction import redacted
from dasktune.trainer.fingerprint.fingerprint import differing

logger = logging.getLogger(__name__)

# Its functions travel with their code: workers may lack the module.
cloudpickle.register_pickle_by_value(process)

CORE = ("dask", "distributed", "cloudpickle", "msgpack", "numpy", "torch", "fsspec", "zarr")
"""Packages whose versions matter for every study."""

ROUND_TRIPS = 5
"""Readings of each clock; the fastest answer counts."""

_LARGE, _ALL_LARGE = 8 * 2**20, 256 * 2**20
"""Most bytes that one worker, and all workers together, write to the store."""

Remote = Callable[..., Any]
Trip = tuple[float, Any, float]
"""The driver's clock before a call, the answer or the error, and the clock after it."""


class Collector:
    """Collects the facts on all that a study needs, once.

    Each call has a time limit of some `seconds`, so that a worker that hangs is named and delays
    no other; `clock` is the time of day of the driver (epoch seconds).
    """

    def __init__(
        self,
        client: Client,
        checked: CheckedStudy,
        seconds: float,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._client = client
        self._checked = checked
        self._seconds = seconds
        self._workers: dict[str, WorkerFacts] = {}

    def facts(self) -> Facts:
        """Return all facts that can be collected."""
        packages = sorted({*CORE, *self._checked.packages()})
        driver = Look(**process.look(packages, [], []))
        absent = self._wait_for_workers()
        scheduler = self._look(packages)
        self._compare_clocks()
        same = [
            address
            for address, look in self._looks.items()
            if look.packages["dasktune"] == driver.packages["dasktune"]
        ]
        self._examine(same)
        self._look_at_torch()
        if self._checked.plan.store.startswith("memory://"):
            same = [address for address in same if self._looks[address].process == driver.process]
        return Facts(
            trainer=self._checked.facts(),
            driver=driver,
            store=self._try_store(same),
            database=storage.try_database(self._checked.database),
            scheduler=scheduler,
            absent=absent,
            pools=self._pools(),
            workers=tuple(self._workers.values()),
            limit=self._seconds,
        )

    @property
    def _looks(self) -> dict[str, Look]:
        """The workers that have answered."""
        known = self._workers.items()
        return {address: facts.look for address, facts in known if facts.look is not None}

    # -------------------------------------------------------------------------- calls

    def _trips(
        self, function: Remote, workers: Iterable[str], *arguments: object
    ) -> dict[str, Trip]:
        """Call a function on workers, all at a time."""

        async def call(worker: str) -> Trip:
            before = self._clock()
            running = self._client.run(function, *arguments, workers=[worker], on_error="return")
            try:
                answer = (await asyncio.wait_for(running, self._seconds))[worker]
            except Exception as error:  # noqa: BLE001 - Dask has many errors for a worker that dies
                answer = error
            return before, answer, self._clock()

        async def call_all() -> dict[str, Trip]:
            asked = list(workers)
            return dict(zip(asked, await asyncio.gather(*map(call, asked)), strict=True))

        trips: dict[str, Trip] = self._wait(call_all)
        return trips

    def _ask(
        self, check: str, function: Remote, workers: Iterable[str], *arguments: object
    ) -> dict[str, Any]:
        """Return the answers of workers; note in their facts why others gave none."""
        answers = {}
        for worker, (_, answer, _) in self._trips(function, workers, *arguments).items():
            if isinstance(answer, BaseException):
                self._workers[worker].unanswered[check] = redacted(self._reason(answer))
            else:
                answers[worker] = answer
        return answers

    def _wait(self, work: Callable[[], Any]) -> Any:
        limit = self._seconds + CHECK_GRACE_SECONDS
        return self._client.sync(work, asynchronous=False, callback_timeout=limit)

    def _reason(self, error: BaseException) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer within {self._seconds:g} s"
        return f"{type(error).__name__}: {' '.join(str(error).split())}"

    # ------------------------------------------------------------------------ workers

    def _wait_for_workers(self) -> str:
        """Wait for the workers; return why some are missing, or an empty text."""
        cluster, began, waiting = elastic_of(self._client), time.monotonic(), ""
        if cluster is not None:
            cluster.use({pool.name: 1 for pool in cluster.pools()}, (), {})
        while True:
            there, expected = self._addresses(), _expected(self._client.cluster)
            passed = time.monotonic() - began
            trouble = None if cluster is None else cluster.trouble()
            is_whole = len(there) >= expected and not any(map(_may_start, self._pools()))
            if is_whole or trouble is not None:
                break
            if passed > WORKERS_SECONDS and (there or cluster is None):
                break
            if cluster is not None and (reason := cluster.waiting()) != waiting:
                waiting = reason
                logger.warning("waiting for a worker; %s", waiting)
            self._client.sync(asyncio.sleep, 0.2, asynchronous=False)
        self._workers = {address: WorkerFacts(address=address) for address in sorted(there)}
        if len(there) >= expected:
            return ""
        return trouble or f"{len(there)} of {expected} after {passed:.0f} s"

    def _addresses(self) -> list[str]:
        """Return the addresses of the scheduler's workers."""
        scheduler = self._client.scheduler
        if scheduler is None:
            raise ClusterError("the client must be connected to a scheduler")

        async def ask() -> Any:
            return await asyncio.wait_for(scheduler.identity(), self._seconds)

        try:
            return list(self._wait(ask)["workers"])
        except (OSError, TimeoutError) as error:
            words = f"the scheduler {scheduler.address} does not answer: {self._reason(error)}"
            raise ClusterError(words) from error

    def _pools(self) -> tuple[PoolStatus, ...]:
        """Return the pools of a cluster that starts its workers itself."""
        cluster = elastic_of(self._client)
        return () if cluster is None else tuple(pool.status for pool in cluster.pools())

    def _look(self, packages: list[str]) -> Look | None:
        """Look at all workers; return the look at the scheduler if it answers."""
        plan = self._checked.plan
        folder = storage.local_folder(plan.store)
        folders, paths = [] if folder is None else [str(folder)], _paths_in(plan.config)
        arguments = (packages, folders, paths)
        for worker, answer in self._ask(
            "answer", process.look_at_worker, self._workers, *arguments
        ).items():
            self._workers[worker].look = Look(**answer)

        async def ask_scheduler() -> Any:
            running = self._client.run_on_scheduler(process.look_at_scheduler, packages)
            return await asyncio.wait_for(running, self._seconds)

        try:
            return Look(**self._wait(ask_scheduler))
        except Exception:  # noqa: BLE001 - a check reports every kind of failure alike
            return None

    def _compare_clocks(self) -> None:
        """Compare the clocks of all workers with this one."""
        trips: dict[str, list[Trip]] = defaultdict(list)
        workers = list(self._looks)
        for _ in range(ROUND_TRIPS):
            for worker, trip in self._trips(process.time_of_day, workers).items():
                if isinstance(trip[1], float):
                    trips[worker].append(trip)
            # A worker that did not answer the first call is not called again.
            workers = list(trips)
        for worker, measured in trips.items():
            self._workers[worker].offset = offset_of(measured)

    def _examine(self, same: Sequence[str]) -> None:
        """Open the trainer on workers, which have the same dasktune, and compare it."""
        plan = self._checked.plan
        here = study.parts_of(plan, self._checked.trainer)
        answers = self._ask("open and compare the trainer", study.examine_there, same, plan)
        for worker, fields in answers.items():
            parts = fields.pop("parts", here)
            known = self._workers[worker]
            self._workers[worker] = replace(
                known, differing=tuple(differing(here, parts)), **fields
            )

    def _look_at_torch(self) -> None:
        """Ask torch for its GPUs, once for workers with the same host and environment."""
        groups: dict[tuple[object, ...], list[str]] = defaultdict(list)
        is_needed = self._checked.plan.needs.least("GPU")
        for worker, look in self._looks.items():
            has_torch = look.packages.get("torch") is not None
            if has_torch and (look.gpus or look.resources.get("GPU") or is_needed):
                groups[look.host, look.visible].append(worker)
        first = {group[0]: group for group in groups.values()}
        for worker, answer in self._ask("look at GPUs", process.look_at_torch, first).items():
            devices = tuple(Device(**device) for device in answer["devices"])
            torch = Torch(cuda=answer["cuda"], devices=devices, problem=answer["problem"])
            for each in first[worker]:
                self._workers[each].torch = torch

    # -------------------------------------------------------------------------- store

    def _try_store(self, workers: Sequence[str]) -> StoreFacts:
        """Use the store from the driver and from workers; leave nothing there."""
        url, folder = self._checked.plan.store, probe_folder(uuid4().hex)
        nbytes = max(2**20, min(_LARGE, _ALL_LARGE // max(1, len(workers))))
        made = storage.absent_folders(url, folder)
        before = self._clock()
        own = storage.use(url, folder, storage.DRIVER, 1, self._seconds)
        after = self._clock()
        try:
            there = None if own.failed else self._use_on_workers(url, folder, nbytes, workers)
        finally:
            with suppress(Exception):  # the driver's use has failed in the same way
                storage.clear(url, folder, self._seconds)
            for path in made:
                with suppress(OSError):
                    path.rmdir()
        offset = None if there is None else offset_of([(before, there, after)])
        return StoreFacts(url=redacted(url), use=own, offset=offset)

    def _use_on_workers(
        self, url: str, folder: str, nbytes: int, workers: Sequence[str]
    ) -> float | None:
        """Use the store from workers; return its time of the driver's file, None if unknown."""
        arguments = (url, folder, nbytes, self._seconds)
        uses = self._ask("use the store", storage.use_there, workers, *arguments)
        names = [storage.name_of(worker) for worker in uses]
        seen = storage.written(url, folder, names, self._seconds)
        for (worker, use), is_seen in zip(uses.items(), seen, strict=True):
            self._workers[worker].use = replace(use, is_seen=is_seen)
        return storage.clock_of(url, folder, self._seconds)


def _may_start(pool: PoolStatus) -> bool:
    """Return whether a pool has no worker yet, and may get one."""
    return not pool.workers and not pool.is_refused


def _expected(cluster: Any) -> int:
    """Return the number of workers that a cluster shall have; at least 1."""
    jobs = getattr(cluster, "worker_spec", {}).values()
    return max(1, sum(len(job.get("group", ("",))) for job in jobs))


def offset_of(trips: Sequence[Trip]) -> Offset:
    """Return the offset of a clock, from the fastest of several round trips.

    Examples
    --------
    >>> offset_of([(10.0, 15.5, 11.0), (20.0, 25.25, 20.5)])
    Offset(seconds=5.0, error=0.25)
    """
    before, there, after = min(trips, key=lambda trip: trip[2] - trip[0])
    return Offset(seconds=there - (before + after) / 2, error=(after - before) / 2)


def _paths_in(config: Mapping[str, object]) -> list[str]:
    """Return the absolute paths in a trainer's config that exist on the driver."""
    texts = (value for value in config.values() if isinstance(value, str) and len(value) < 4096)
    return sorted(text for text in texts if Path(text).is_absolute() and Path(text).exists())
