"""Gathering what is known of a cluster, its workers, a store and a database.

It takes time and asks others, and decides nothing: that is `dasktune.doctor.diagnose`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

from distributed import Client, Future

from dasktune.cluster.workers import WORKERS_SECONDS, pool_of
from dasktune.doctor import probes, trainers, visits
from dasktune.doctor.asking import Answers, Asking
from dasktune.doctor.databases import examine_database
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
    Visit,
    WorkerFacts,
)
from dasktune.doctor.subject import Subject
from dasktune.storage.layout import probe_folder
from dasktune.storage.redaction import redacted
from dasktune.trainer.fingerprint.fingerprint import differing

logger = logging.getLogger(__name__)

CORE = ("dask", "distributed", "cloudpickle", "msgpack", "numpy", "torch", "fsspec", "zarr")
"""Packages whose versions count for every study."""

ROUND_TRIPS = 5
"""How often each clock is asked; the fastest answer counts."""

TASKS = 5
"""Tasks that do nothing, one after the other, on each worker."""

_LARGE, _ALL_LARGE = 8 * 2**20, 256 * 2**20
"""Bytes that each worker, and all of them together, write to the store at most."""

Known = dict[str, WorkerFacts]


class Examination:
    """One look at all that a study needs.

    Parameters
    ----------
    client
        Connected to the cluster.
    subject
        The study.
    seconds
        How long each check may take on each worker.
    clock
        Tells the time of day here (epoch seconds).
    """

    def __init__(
        self,
        client: Client,
        subject: Subject,
        seconds: float,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._client = client
        self._subject = subject
        self._seconds = seconds
        self._asking = Asking(client, seconds)
        self._known: Known = {}

    def facts(self) -> Facts:
        """Return all that can be found out."""
        subject, plan = self._subject, self._subject.plan
        packages = sorted({*CORE, *subject.packages()})
        driver = _look(probes.look(packages, [], []))
        absent = self._meet()
        scheduler, _ = self._asking.ask_scheduler(probes.look_at_scheduler, packages)
        self._look(packages, _paths_in(plan.config))
        self._time()
        self._open_trainer(driver)
        self._look_at_torch()
        store = self._try_store(driver)
        self._run_tasks()
        return Facts(
            trainer=subject.facts(),
            driver=driver,
            store=store,
            database=examine_database(subject.database),
            scheduler=None if scheduler is None else _look(scheduler["look"]),
            scheduler_role=None if scheduler is None else Role(**scheduler["role"]),
            absent=absent,
            workers=tuple(self._known.values()),
            limit=self._seconds,
        )

    # ------------------------------------------------------------------------ workers

    def _meet(self) -> str:
        """Wait for the workers; return why there are none, or fewer than there should be."""
        pool, began, said = pool_of(self._client), time.monotonic(), ""
        while True:
            there, expected = self._asking.workers(), _expected(self._client.cluster)
            passed = time.monotonic() - began
            trouble = None if pool is None else pool.trouble()
            if len(there) >= expected or trouble is not None:
                break
            if passed > WORKERS_SECONDS and (there or pool is None):
                break
            if pool is not None and (waiting := pool.waiting()) != said:
                said = waiting
                logger.warning("waiting for a worker; %s", waiting)
            self._pause()
        self._known = {one: WorkerFacts(address=one) for one in sorted(there)}
        if len(there) >= expected:
            return ""
        return trouble or f"{len(there)} of {expected} after {passed:.0f} s"

    def _pause(self) -> None:
        self._client.sync(asyncio.sleep, 0.2, asynchronous=False)

    def _alive(self) -> list[str]:
        """Return the workers that have answered so far."""
        return [one for one, facts in self._known.items() if facts.look is not None]

    def _take(self, check: str, answers: Answers, made: Callable[[Any], Mapping[str, Any]]) -> None:
        """Take in what workers answered, and who did not."""
        for one, found in answers.found.items():
            self._known[one] = replace(self._known[one], **made(found))
        for one, reason in answers.failed.items():
            facts = self._known[one]
            silent = {**facts.unanswered, check: redacted(reason)}
            self._known[one] = replace(facts, unanswered=silent)

    def _look(self, packages: list[str], paths: list[str]) -> None:
        folder = visits.local_folder(self._subject.plan.store)
        folders = [] if folder is None else [str(folder)]
        answers = self._asking.ask(probes.look_at_worker, self._known, packages, folders, paths)
        self._take(
            "answer",
            answers,
            lambda found: {"look": _look(found["look"]), "role": Role(**found["role"])},
        )

    def _time(self) -> None:
        """Compare the clocks of all workers with this one."""
        trips: dict[str, list[tuple[float, float, float]]] = {}
        for _ in range(ROUND_TRIPS):
            # One that has not answered the first time is not waited for again.
            asked = list(trips) or self._alive()
            answers = self._asking.ask_time(probes.time_of_day, asked, self._clock)
            for one, trip in answers.items():
                trips.setdefault(one, []).append(trip)
        for one, measured in trips.items():
            self._known[one] = replace(self._known[one], offset=offset_of(measured))

    def _open_trainer(self, driver: Look) -> None:
        """Open the trainer on each worker that has the same dasktune."""
        plan, own = self._subject.plan, driver.packages["dasktune"]
        same = [one for one in self._alive() if _version_of(self._known[one]) == own]
        answers = self._asking.ask(trainers.open_there, same, plan)
        self._take("open the trainer", answers, lambda found: {"opened": found})
        able = [one for one in same if self._known[one].opened == ""]
        here = dict(trainers.parts_of(plan, self._subject.trainer))
        if here:
            answers = self._asking.ask(trainers.parts_there, able, plan)
            self._take(
                "compare code and data",
                answers,
                lambda there: {"differing": tuple(differing(here, there))},
            )

    def _look_at_torch(self) -> None:
        """Ask torch for its GPUs, once for all workers that it would answer the same."""
        asked: dict[tuple[object, ...], list[str]] = {}
        for one in self._alive():
            look, role = self._known[one].look, self._known[one].role
            if look is None or role is None or look.packages.get("torch") is None:
                continue
            if look.gpus or role.resources.get("GPU") or self._subject.plan.needs.get("GPU"):
                asked.setdefault((look.host, look.visible), []).append(one)
        answers = self._asking.ask(probes.look_at_torch, [group[0] for group in asked.values()])
        for group in asked.values():
            self._take(
                "look at GPUs", _shared(answers, group), lambda found: {"torch": _torch(found)}
            )

    def _run_tasks(self) -> None:
        """Run tasks that do nothing: some at once on all workers, then some one by one."""
        give_up = time.monotonic() + self._seconds
        begun = {one: [self._submit(one) for _ in range(TASKS)] for one in self._alive()}
        for one, futures in begun.items():
            answers = self._trip(one, futures, give_up)
            self._take("run a task", answers, lambda found: {"trip": found})

    def _submit(self, worker: str) -> Future[Any]:
        return self._client.submit(time.monotonic, workers=[worker], pure=False)

    def _trip(self, worker: str, futures: list[Future[Any]], give_up: float) -> Answers:
        taken = []
        try:
            stamps = sorted(
                one.result(timeout=max(0.1, give_up - time.monotonic())) for one in futures
            )
            for _ in range(TASKS):
                began = time.monotonic()
                self._submit(worker).result(timeout=self._seconds)
                taken.append(time.monotonic() - began)
        except TimeoutError:
            return Answers(failed={worker: f"no answer within {self._seconds:g} s"})
        except Exception as error:  # noqa: BLE001 - a worker that dies has errors of its own
            return Answers(failed={worker: f"{type(error).__name__}: {error}"})
        finally:
            self._client.cancel(futures)
        gaps = [later - sooner for sooner, later in pairwise(stamps)]
        return Answers({worker: Trip(seconds=_median(taken), gap=_median(gaps))})

    # -------------------------------------------------------------------------- store

    def _try_store(self, driver: Look) -> StoreFacts:
        """Use the store from here and from each worker; leave nothing there."""
        url, folder = self._subject.plan.store, probe_folder(uuid4().hex)
        before = self._clock()
        here = visits.visit(url, folder, "driver", self._seconds)
        after = self._clock()
        facts = StoreFacts(url=redacted(url), visit=Visit(**_without_absent(here)))
        guests = self._guests(driver) if "failed" not in here else []
        names = {one: f"worker-{number}" for number, one in enumerate(guests)}
        absent: dict[str, tuple[Sequence[str]]] = {}
        try:
            if guests:
                absent = self._send(url, folder, names)
                facts = replace(facts, alone=self._measure(url, folder, names))
            if "failed" not in here:
                written = _written(url, folder, self._seconds)
                offset = None if written is None else offset_of([(before, written, after)])
                facts = replace(facts, offset=offset)
        finally:
            left = self._clear(url, folder, names, absent)
            visits.remove_empty(here["absent"])
        return replace(facts, left=left)

    def _guests(self, driver: Look) -> list[str]:
        """Return the workers that can use the store: with this dasktune, and able to see it."""
        found = []
        for one in self._alive():
            look = self._known[one].look
            is_same = _version_of(self._known[one]) == driver.packages["dasktune"]
            if look is None or not is_same:
                continue
            if (
                not self._subject.plan.store.startswith("memory://")
                or look.process == driver.process
            ):
                found.append(one)
        return found

    def _send(self, url: str, folder: str, names: Mapping[str, str]) -> dict[str, Any]:
        """Let workers write beside the driver's file; return the folders that they had to make."""
        arguments = {one: (url, folder, name, self._seconds) for one, name in names.items()}
        answers = self._asking.ask_each(visits.arrive, arguments)
        there = [one for one, found in answers.found.items() if "failed" not in found]
        seen = visits.written(url, folder, [names[one] for one in there], self._seconds)
        is_seen = dict(zip(there, seen, strict=True))
        full = {
            one: {**_without_absent(found), "is_seen": is_seen.get(one, False)}
            for one, found in answers.found.items()
        }
        self._take(
            "use the store",
            Answers(full, answers.failed),
            lambda found: {"visit": Visit(**found)},
        )
        return {
            one: (found["absent"],)
            for one, found in answers.found.items()
            if found.get("failed") not in visits.BEFORE_WRITING
        }

    def _measure(self, url: str, folder: str, names: Mapping[str, str]) -> Speed | None:
        """Measure how fast the store is for all workers at once; return how fast for one."""
        able = [one for one in names if _can_store(self._known[one])]
        nbytes = max(2**20, min(_LARGE, _ALL_LARGE // max(1, len(able))))
        arguments = {one: (url, folder, names[one], nbytes, self._seconds) for one in able}
        answers = self._asking.ask_each(visits.measure, arguments)
        self._take("measure the store", answers, lambda found: {"speed": Speed(**found)})
        if len(answers.found) < 2:
            return None
        first = next(iter(answers.found))
        alone = self._asking.ask_each(visits.measure, {first: arguments[first]})
        return next((Speed(**found) for found in alone.found.values()), None)

    def _clear(
        self, url: str, folder: str, names: Mapping[str, str], absent: Mapping[str, Any]
    ) -> str:
        """Remove all that was written; return what could not be."""
        arguments = {one: (url, folder, name, self._seconds) for one, name in names.items()}
        there = {one: given for one, given in arguments.items() if one in absent}
        self._asking.ask_each(visits.clear, there)
        self._asking.ask_each(visits.leave, {one: made for one, made in absent.items() if made[0]})
        try:
            is_gone = visits.clear_files(url, folder, "driver", self._seconds)
        except Exception as error:  # noqa: BLE001 - libraries of stores have errors of their own
            return f"{folder}: {type(error).__name__}"
        return "" if is_gone else folder


def _expected(cluster: Any) -> int:
    """Return how many workers a cluster is to have, as far as it says; at least one."""
    jobs = getattr(cluster, "worker_spec", {}).values()
    return max(1, sum(len(job.get("group", ("",))) for job in jobs))


def offset_of(trips: Sequence[tuple[float, float, float]]) -> Offset:
    """Return how far a clock is ahead, from the fastest of several round trips.

    Parameters
    ----------
    trips
        Of each, what the driver's clock said before, the other one, and the driver's after.

    Examples
    --------
    >>> offset_of([(10.0, 15.5, 11.0), (20.0, 25.25, 20.5)])
    Offset(seconds=5.0, error=0.25)
    """
    before, there, after = min(trips, key=lambda trip: trip[2] - trip[0])
    return Offset(seconds=there - (before + after) / 2, error=(after - before) / 2)


def _look(found: Mapping[str, Any]) -> Look:
    return Look(**found)


def _torch(found: Mapping[str, Any]) -> Torch:
    return Torch(**{**found, "devices": tuple(Device(**one) for one in found["devices"])})


def _shared(answers: Answers, group: Sequence[str]) -> Answers:
    """Return the answer of the first of a group as that of each."""
    first = group[0]
    return Answers(
        dict.fromkeys(group, answers.found[first]) if first in answers.found else {},
        dict.fromkeys(group, answers.failed[first]) if first in answers.failed else {},
    )


def _version_of(facts: WorkerFacts) -> str | None:
    return None if facts.look is None else facts.look.packages.get("dasktune")


def _can_store(facts: WorkerFacts) -> bool:
    return facts.visit is not None and not facts.visit.failed


def _without_absent(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name != "absent"}


def _written(url: str, folder: str, seconds: float) -> float | None:
    """Return when the store says that the driver wrote; None if it does not say."""
    try:
        return visits.clock_of(url, folder, seconds)
    except Exception:  # noqa: BLE001 - what is wrong with the store is told elsewhere
        return None


def _paths_in(config: Mapping[str, object]) -> list[str]:
    """Return what looks like a path in a trainer's config: what exists here by its full name."""
    texts = (value for value in config.values() if isinstance(value, str) and len(value) < 4096)
    return sorted(one for one in texts if Path(one).is_absolute() and Path(one).exists())


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0
