"""Collect the facts on a cluster, its workers, a store and a database.

This module takes time, calls workers and decides nothing; `dasktune.doctor.checks` decides.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import cloudpickle
from distributed import Client, Future

from dasktune.cluster.pools import PoolStatus, elastic_of
from dasktune.doctor import process, storage, study
from dasktune.doctor.facts import (
    Device,
    Facts,
    Look,
    Offset,
    Role,
    Speed,
    StoreFacts,
    Torch,
    Trip,
    WorkerFacts,
)
from dasktune.doctor.study import CheckedStudy
from dasktune.engine.timeouts import CHECK_GRACE_SECONDS, WORKERS_SECONDS
from dasktune.errors import ClusterError
from dasktune.storage.layout import probe_folder
from dasktune.storage.redaction import redacted
from dasktune.trainer.fingerprint.fingerprint import differing

Remote = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of workers, and the reasons of failed calls, by address."""

    values: Mapping[str, Any] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)


class RemoteCalls:
    """Calls functions on the workers and the scheduler of a cluster, all at a time.

    Each call has a time limit, so that a worker that hangs is named and delays no other.

    Parameters
    ----------
    client
        Connected to the cluster.
    seconds
        Longest time of one call.
    """

    def __init__(self, client: Client, seconds: float) -> None:
        self._client = client
        self._seconds = seconds

    def call(self, function: Remote, workers: Iterable[str], *arguments: object) -> Answers:
        """Call a function on workers with the same arguments."""
        return self.call_each(function, dict.fromkeys(workers, arguments))

    def call_each(self, function: Remote, arguments: Mapping[str, tuple[object, ...]]) -> Answers:
        """Call a function on each worker with arguments of its own."""

        async def call(worker: str) -> object:
            running = self._client.run(
                function, *arguments[worker], workers=[worker], on_error="return"
            )
            answer: Mapping[str, object] = await asyncio.wait_for(running, self._seconds)
            return answer[worker]

        answers = self._gather(function, {worker: partial(call, worker) for worker in arguments})
        failed = {worker for worker, answer in answers.items() if _is_error(answer)}
        return Answers(
            {worker: answer for worker, answer in answers.items() if worker not in failed},
            {worker: self._reason(answers[worker]) for worker in answers if worker in failed},
        )

    def call_clock(
        self, function: Remote, workers: Iterable[str], clock: Callable[[], float]
    ) -> Mapping[str, tuple[float, float, float]]:
        """Return for each worker `clock` before the call, the worker's answer, `clock` after."""

        async def call(worker: str) -> tuple[float, float, float]:
            before = clock()
            running = self._client.run(function, workers=[worker])
            answer: Mapping[str, float] = await asyncio.wait_for(running, self._seconds)
            return before, answer[worker], clock()

        trips = self._gather(function, {worker: partial(call, worker) for worker in workers})
        return {worker: trip for worker, trip in trips.items() if not _is_error(trip)}

    def call_scheduler(self, function: Remote, *arguments: object) -> Any:
        """Return the scheduler's answer; None if the call fails."""

        async def call() -> object:
            running = self._client.run_on_scheduler(function, *arguments)
            return await asyncio.wait_for(running, self._seconds)

        try:
            return self._do(function, call)
        except Exception:  # noqa: BLE001 - a check reports every kind of failure alike
            return None

    def workers(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the scheduler's facts on each worker, by address.

        Raises
        ------
        ClusterError
            If it does not answer.
        """
        scheduler = self._client.scheduler
        if scheduler is None:
            raise ClusterError("the client must be connected to a scheduler")

        async def ask() -> Any:
            return await asyncio.wait_for(scheduler.identity(n_workers=-1), self._seconds)

        try:
            known = self._client.sync(ask, asynchronous=False)
        except (OSError, TimeoutError) as error:
            words = f"the scheduler {scheduler.address} does not answer: {self._reason(error)}"
            raise ClusterError(words) from error
        workers: Mapping[str, Mapping[str, Any]] = known["workers"]
        return workers

    def _gather(
        self, function: Remote, calls: Mapping[str, Callable[[], Awaitable[Any]]]
    ) -> dict[str, Any]:
        """Return the answer or the error of each call."""
        if not calls:
            return {}

        async def call_all() -> list[Any]:
            running = (call() for call in calls.values())
            return await asyncio.gather(*running, return_exceptions=True)

        return dict(zip(calls, self._do(function, call_all), strict=True))

    def _do(self, function: Remote, work: Callable[[], Any]) -> Any:
        with _by_value(sys.modules[function.__module__]):
            return self._client.sync(
                work, asynchronous=False, callback_timeout=self._seconds + CHECK_GRACE_SECONDS
            )

    def _reason(self, error: object) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer within {self._seconds:g} s"
        words = " ".join(str(error).split())
        return f"{type(error).__name__}: {words}"


def _is_error(answer: object) -> bool:
    return isinstance(answer, BaseException)


@contextmanager
def _by_value(module: ModuleType) -> Iterator[None]:
    """Send functions of a module with their code: workers may lack the module."""
    if module.__name__ in cloudpickle.list_registry_pickle_by_value():
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


# ------------------------------------------------------------------------ facts

logger = logging.getLogger(__name__)

CORE = ("dask", "distributed", "cloudpickle", "msgpack", "numpy", "torch", "fsspec", "zarr")
"""Packages whose versions matter for every study."""

ROUND_TRIPS = 5
"""Readings of each clock; the fastest answer counts."""

TASKS = 5
"""Empty tasks on each worker, one after the other."""

_LARGE, _ALL_LARGE = 8 * 2**20, 256 * 2**20
"""Most bytes that one worker, and all workers together, write to the store."""

Known = dict[str, WorkerFacts]


class Collector:
    """Collects the facts on all that a study needs, once.

    Parameters
    ----------
    client
        Connected to the cluster.
    checked
        The study.
    seconds
        Longest time of each check on each worker.
    clock
        The time of day of the driver (epoch seconds).
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
        self._calls = RemoteCalls(client, seconds)
        self._known: Known = {}

    def facts(self) -> Facts:
        """Return all facts that can be collected."""
        checked, plan = self._checked, self._checked.plan
        packages = sorted({*CORE, *checked.packages()})
        driver = Look(**process.look(packages, [], []))
        absent = self._wait_for_workers()
        scheduler = self._calls.call_scheduler(process.look_at_scheduler, packages)
        self._look(packages, _paths_in(plan.config))
        self._time()
        self._open_trainer(driver)
        self._look_at_torch()
        store = self._try_store(driver)
        self._run_tasks()
        return Facts(
            trainer=checked.facts(),
            driver=driver,
            store=store,
            database=storage.try_database(checked.database),
            scheduler=None if scheduler is None else Look(**scheduler["look"]),
            scheduler_role=None if scheduler is None else Role(**scheduler["role"]),
            absent=absent,
            pools=self._pools(),
            workers=tuple(self._known.values()),
            limit=self._seconds,
        )

    # ------------------------------------------------------------------------ workers

    def _wait_for_workers(self) -> str:
        """Wait for the workers; return why some are missing, or an empty text."""
        cluster, began, waiting = elastic_of(self._client), time.monotonic(), ""
        if cluster is not None:
            cluster.use({pool.name: 1 for pool in cluster.pools()}, (), {})
        while True:
            there, expected = self._calls.workers(), _expected(self._client.cluster)
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
            self._pause()
        self._known = {address: WorkerFacts(address=address) for address in sorted(there)}
        if len(there) >= expected:
            return ""
        return trouble or f"{len(there)} of {expected} after {passed:.0f} s"

    def _pools(self) -> tuple[PoolStatus, ...]:
        """Return the pools of a cluster that starts its workers itself."""
        cluster = elastic_of(self._client)
        return () if cluster is None else tuple(pool.status for pool in cluster.pools())

    def _pause(self) -> None:
        self._client.sync(asyncio.sleep, 0.2, asynchronous=False)

    def _alive(self) -> list[str]:
        """Return the workers that have answered so far."""
        return [address for address, facts in self._known.items() if facts.look is not None]

    def _store(
        self, check: str, answers: Answers, fields_of: Callable[[Any], Mapping[str, Any]]
    ) -> None:
        """Store the fields that `fields_of` makes of each answer, and the failed calls."""
        for worker, value in answers.values.items():
            self._known[worker] = replace(self._known[worker], **fields_of(value))
        for worker, reason in answers.failed.items():
            facts = self._known[worker]
            unanswered = {**facts.unanswered, check: redacted(reason)}
            self._known[worker] = replace(facts, unanswered=unanswered)

    def _look(self, packages: list[str], paths: list[str]) -> None:
        folder = storage.local_folder(self._checked.plan.store)
        folders = [] if folder is None else [str(folder)]
        answers = self._calls.call(process.look_at_worker, self._known, packages, folders, paths)
        self._store(
            "answer",
            answers,
            lambda answer: {"look": Look(**answer["look"]), "role": Role(**answer["role"])},
        )

    def _time(self) -> None:
        """Compare the clocks of all workers with this one."""
        trips: dict[str, list[tuple[float, float, float]]] = {}
        for _ in range(ROUND_TRIPS):
            # A worker that did not answer the first call is not called again.
            workers = list(trips) or self._alive()
            answers = self._calls.call_clock(process.time_of_day, workers, self._clock)
            for worker, trip in answers.items():
                trips.setdefault(worker, []).append(trip)
        for worker, measured in trips.items():
            self._known[worker] = replace(self._known[worker], offset=offset_of(measured))

    def _open_trainer(self, driver: Look) -> None:
        """Open the trainer on each worker that has the same dasktune."""
        plan, own = self._checked.plan, driver.packages["dasktune"]
        same = [worker for worker in self._alive() if _version_of(self._known[worker]) == own]
        answers = self._calls.call(study.open_there, same, plan)
        self._store("open the trainer", answers, lambda problem: {"opened": problem})
        self._store("find its class", self._calls.call(study.class_there, same), _kind)
        able = [worker for worker in same if self._known[worker].opened == ""]
        here = dict(study.parts_of(plan, self._checked.trainer))
        if here:
            answers = self._calls.call(study.parts_there, able, plan)
            self._store(
                "compare code and data",
                answers,
                lambda there: {"differing": tuple(differing(here, there))},
            )

    def _look_at_torch(self) -> None:
        """Ask torch for its GPUs, once for workers with the same host and environment."""
        groups: dict[tuple[object, ...], list[str]] = {}
        for worker in self._alive():
            look, role = self._known[worker].look, self._known[worker].role
            if look is None or role is None or look.packages.get("torch") is None:
                continue
            if look.gpus or role.resources.get("GPU") or self._checked.plan.needs.least("GPU"):
                groups.setdefault((look.host, look.visible), []).append(worker)
        answers = self._calls.call(process.look_at_torch, [group[0] for group in groups.values()])
        for group in groups.values():
            self._store(
                "look at GPUs", _shared(answers, group), lambda answer: {"torch": _torch(answer)}
            )

    def _run_tasks(self) -> None:
        """Run empty tasks: several at once on all workers, then some one by one."""
        give_up = time.monotonic() + self._seconds
        begun = {worker: [self._submit(worker) for _ in range(TASKS)] for worker in self._alive()}
        for worker, futures in begun.items():
            answers = self._trip(worker, futures, give_up)
            self._store("run a task", answers, lambda trip: {"trip": trip})

    def _submit(self, worker: str) -> Future[Any]:
        return self._client.submit(time.monotonic, workers=[worker], pure=False)

    def _trip(self, worker: str, futures: list[Future[Any]], give_up: float) -> Answers:
        taken = []
        try:
            stamps = sorted(
                future.result(timeout=max(0.1, give_up - time.monotonic())) for future in futures
            )
            for _ in range(TASKS):
                began = time.monotonic()
                self._submit(worker).result(timeout=self._seconds)
                taken.append(time.monotonic() - began)
        except TimeoutError:
            return Answers(failed={worker: f"no answer within {self._seconds:g} s"})
        except Exception as error:  # noqa: BLE001 - Dask has many errors for a worker that dies
            return Answers(failed={worker: f"{type(error).__name__}: {error}"})
        finally:
            self._client.cancel(futures)
        gaps = [later - sooner for sooner, later in pairwise(stamps)]
        return Answers({worker: Trip(seconds=_median(taken), gap=_median(gaps))})

    # -------------------------------------------------------------------------- store

    def _try_store(self, driver: Look) -> StoreFacts:
        """Use the store from the driver and from each worker; leave nothing there."""
        url, folder = self._checked.plan.store, probe_folder(uuid4().hex)
        before = self._clock()
        own = storage.use(url, folder, "driver", self._seconds)
        after = self._clock()
        facts = StoreFacts(url=redacted(url), use=own)
        users = [] if own.failed else self._store_users(driver)
        names = {worker: f"worker-{number}" for number, worker in enumerate(users)}
        made: dict[str, tuple[Sequence[str]]] = {}
        try:
            if users:
                made = self._use_store(url, folder, names)
                facts = replace(facts, alone=self._measure(url, folder, names))
            if not own.failed:
                written = _written(url, folder, self._seconds)
                offset = None if written is None else offset_of([(before, written, after)])
                facts = replace(facts, offset=offset)
        finally:
            left = self._clear(url, folder, names, made)
            storage.remove_empty(own.made)
        return replace(facts, left=left)

    def _store_users(self, driver: Look) -> list[str]:
        """Return the workers that can use the store: with this dasktune, and able to see it."""
        workers = []
        for worker in self._alive():
            look = self._known[worker].look
            if look is None or _version_of(self._known[worker]) != driver.packages["dasktune"]:
                continue
            is_memory = self._checked.plan.store.startswith("memory://")
            if not is_memory or look.process == driver.process:
                workers.append(worker)
        return workers

    def _use_store(self, url: str, folder: str, names: Mapping[str, str]) -> dict[str, Any]:
        """Use the store from workers; return the folders that each had to make."""
        arguments = {worker: (url, folder, name, self._seconds) for worker, name in names.items()}
        answers = self._calls.call_each(storage.use_there, arguments)
        there = [worker for worker, use in answers.values.items() if not use.failed]
        seen = storage.written(url, folder, [names[worker] for worker in there], self._seconds)
        is_seen = dict(zip(there, seen, strict=True))
        uses = {
            worker: replace(use, is_seen=is_seen.get(worker, False))
            for worker, use in answers.values.items()
        }
        self._store("use the store", Answers(uses, answers.failed), lambda use: {"use": use})
        return {
            worker: (use.made,)
            for worker, use in uses.items()
            if use.failed not in storage.BEFORE_WRITING
        }

    def _measure(self, url: str, folder: str, names: Mapping[str, str]) -> Speed | None:
        """Measure the store's speed for all workers at once; return the speed for one alone."""
        able = [worker for worker in names if (use := self._known[worker].use) and not use.failed]
        nbytes = max(2**20, min(_LARGE, _ALL_LARGE // max(1, len(able))))
        arguments = {worker: (url, folder, names[worker], nbytes, self._seconds) for worker in able}
        answers = self._calls.call_each(storage.measure_there, arguments)
        self._store("measure the store", answers, lambda speed: {"speed": speed})
        if len(answers.values) < 2:
            return None
        first = next(iter(answers.values))
        alone = self._calls.call_each(storage.measure_there, {first: arguments[first]})
        return alone.values.get(first)

    def _clear(
        self, url: str, folder: str, names: Mapping[str, str], made: Mapping[str, Any]
    ) -> str:
        """Remove all written files; return the folder if some could not be removed."""
        there = {worker: (url, folder, names[worker], self._seconds) for worker in made}
        self._calls.call_each(storage.clear_there, there)
        folders = {worker: arguments for worker, arguments in made.items() if arguments[0]}
        self._calls.call_each(storage.remove_empty_there, folders)
        try:
            is_gone = storage.clear_files(url, folder, "driver", self._seconds)
        except Exception as error:  # noqa: BLE001 - libraries of stores have errors of their own
            return f"{folder}: {type(error).__name__}"
        return "" if is_gone else folder


def _may_start(pool: PoolStatus) -> bool:
    """Return whether a pool has no worker yet, and may get one."""
    return not pool.workers and not pool.is_refused


def _expected(cluster: Any) -> int:
    """Return the number of workers that a cluster shall have; at least 1."""
    jobs = getattr(cluster, "worker_spec", {}).values()
    return max(1, sum(len(job.get("group", ("",))) for job in jobs))


def offset_of(trips: Sequence[tuple[float, float, float]]) -> Offset:
    """Return the offset of a clock, from the fastest of several round trips.

    Parameters
    ----------
    trips
        For each, the driver's clock before, the other clock, and the driver's clock after.

    Examples
    --------
    >>> offset_of([(10.0, 15.5, 11.0), (20.0, 25.25, 20.5)])
    Offset(seconds=5.0, error=0.25)
    """
    before, there, after = min(trips, key=lambda trip: trip[2] - trip[0])
    return Offset(seconds=there - (before + after) / 2, error=(after - before) / 2)


def _torch(answer: Mapping[str, Any]) -> Torch:
    devices = tuple(Device(**device) for device in answer["devices"])
    return Torch(cuda=answer["cuda"], devices=devices, problem=answer["problem"])


def _kind(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "kind": answer["class"],
        "tags": tuple(answer["tags"]),
        "device": answer["device"],
        "has_mps": answer["mps"],
    }


def _shared(answers: Answers, group: Sequence[str]) -> Answers:
    """Return the answer of a group's first worker as the answer of each."""
    first = group[0]
    return Answers(
        dict.fromkeys(group, answers.values[first]) if first in answers.values else {},
        dict.fromkeys(group, answers.failed[first]) if first in answers.failed else {},
    )


def _version_of(facts: WorkerFacts) -> str | None:
    return None if facts.look is None else facts.look.packages.get("dasktune")


def _written(url: str, folder: str, seconds: float) -> float | None:
    """Return the store's time of the driver's file (epoch seconds); None if unknown."""
    try:
        return storage.clock_of(url, folder, seconds)
    except Exception:  # noqa: BLE001 - the check of the store reports it
        return None


def _paths_in(config: Mapping[str, object]) -> list[str]:
    """Return the absolute paths in a trainer's config that exist on the driver."""
    texts = (value for value in config.values() if isinstance(value, str) and len(value) < 4096)
    return sorted(text for text in texts if Path(text).is_absolute() and Path(text).exists())


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0
