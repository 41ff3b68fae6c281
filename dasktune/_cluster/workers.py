"""The workers of a cluster as slots."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import warnings
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from distributed import Client
from distributed.comm.addressing import get_address_host
from distributed.core import Status

from dasktune._cluster.pools import elastic_of, fixed_size_text, is_starting
from dasktune._cluster.versions import Versions, compare, probe
from dasktune._engine.timeouts import (
    FIRST_WORKER_SECONDS,
    IMPORT_SECONDS,
    PROBE_SECONDS,
    RECONNECT_SECONDS,
    SCHEDULER_ANSWER_SECONDS,
    Timeouts,
)
from dasktune._worker.job import JobPlan, this_process
from dasktune._worker.messages import LeaveAnnounced
from dasktune._worker.plugin import NO_PLUGIN, TOPIC, StagePlugin, greet, install
from dasktune.errors import ClusterError
from dasktune.graph.events import WorkerJoined, WorkerLost
from dasktune.needs import NumericClass, Offer, unmet_text

logger = logging.getLogger(__name__)

Put = Callable[[WorkerJoined | WorkerLost | LeaveAnnounced], None]
"""Takes what happens to workers; called from any thread."""

NO_ANSWER = object()
"""Stands for the answer of a worker that gives none."""


@contextmanager
def own_client(client: Client) -> Iterator[Client]:
    """Yield a second client of the same cluster.

    A client keeps one handler for each topic of events: with one of its own, a study
    takes none away from its user or from another study.
    """
    if client.status != "running" or client.scheduler is None:
        raise ClusterError(f"the client must be connected, it is {client.status}")
    address, security = client.scheduler.address, client.security
    with Client(address, security=security, set_as_default=False) as own:
        own.cluster = client.cluster  # for `elastic_of`; who started it closes it
        yield own


def connect_again(address: str, security: Any, cluster: object) -> Client | None:
    """Return a new client of a lost scheduler; None until the scheduler answers.

    Dask's own reconnection would lose the subscriptions of the client. `cluster` is the value of
    the client's attribute of that name.
    """
    try:
        client = Client(address, security=security, set_as_default=False, timeout=RECONNECT_SECONDS)
    except (OSError, TimeoutError):
        return None
    client.cluster = cluster
    return client


@contextmanager
def client_hushed() -> Iterator[None]:
    """Keep Dask's client from writing tracebacks about a scheduler that is known to be gone."""
    loggers = [logging.getLogger(f"distributed.{name}") for name in ("client", "utils")]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)


class Workers:
    """The workers of a cluster while a study runs there; `put` takes what happens to them.

    Dask has paused the workers in `paused`, since their memory is nearly full: they begin nothing.
    Of these the `resting` execute nothing. `has_met_all`: all workers of the cluster were ready
    when this was opened. Each worker runs the function that `find_versions` returns, to give its
    `Versions`.
    """

    def __init__(
        self,
        client: Client,
        plan: JobPlan,
        put: Put,
        timeouts: Timeouts | None = None,
        *,
        find_versions: Callable[[], Callable[..., Versions]] = probe,
    ) -> None:
        self._client = client
        self._plan = plan
        self._put = put
        self._find_versions = find_versions
        self._elastic = elastic_of(client)
        self._lock = threading.Lock()
        self._processes: dict[str, str] = {}
        self._resources: dict[str, Mapping[str, float]] = {}
        self._known: set[str] = set()
        self._versions: dict[str, Versions] = {}
        self._warned: set[str] = set()
        self._timeouts = timeouts or Timeouts()
        self._looked = time.monotonic()
        self._heard: dict[str, tuple[float, float]] = {}
        """By worker: the scheduler's word of when it was heard last, and since when that is so."""
        self._silent: set[str] = set()
        self.paused: frozenset[str] = frozenset()
        self.resting: frozenset[str] = frozenset()
        self._scheduler = ""
        self._open = False
        self._is_sent = False
        """Whether the scheduler has done with sending the plugin to the workers of then."""
        self.has_met_all = False

    def open(
        self,
        on_event: Callable[[tuple[float, Mapping[str, Any]]], None],
        patience: float | None = None,
    ) -> Generator[None, None, list[WorkerJoined]]:
        """Check all workers and get them ready; return those that can be used.

        Yields before each look for the first worker: a caller that closes the generator waits no
        longer. The first worker is awaited for `patience` seconds, or as `Timeouts` say if None.
        `on_event` takes what workers say. Raises a `ClusterError` with all problems
        at once: there are no workers, or they lack dasktune, have other versions of packages than
        they must, cannot open the trainer, or do not have what stages need.
        """
        self._ask_for_first()
        if patience is None or self._elastic is not None:
            patience = self._timeouts.patience(asks=self._elastic is not None)
        yield from self._wait(patience)
        self._scheduler = self._client.scheduler_info(n_workers=0)["id"]
        versions = self._ask(self._find_versions(), seconds=PROBE_SECONDS)
        self._refuse(versions)
        is_whole = len(versions) == len(self._client.scheduler_info(n_workers=-1)["workers"])
        self._open = True  # from here on there is something to be taken off again
        # Who has not answered does not answer to this either.
        seconds = IMPORT_SECONDS if is_whole else PROBE_SECONDS
        self._broadcast(self._send_plugin, seconds)
        self._client.subscribe_topic(TOPIC, on_event)
        self._client.subscribe_topic("all", self._on_membership)
        greetings = {
            address: greeting
            for address, greeting in self._ask(greet, self._plan.run, workers=[*versions]).items()
            if greeting["problem"] != NO_PLUGIN
        }  # who comes at this moment is met later
        of_workers: dict[str, list[str]] = {}
        for address, greeting in greetings.items():
            if problem := self._problem_of(address, greeting):
                of_workers.setdefault(problem, []).append(address)
        problems = [
            f"worker{'s' if len(those) > 1 else ''} {', '.join(those)}: {problem}"
            for problem, those in of_workers.items()
        ]
        self.has_met_all = is_whole and greetings.keys() == versions.keys()
        offers = [_offer_of(greeting) for greeting in greetings.values()]
        if not problems and offers and not any(map(self._plan.needs.fits, offers)):
            unmet = unmet_text(self._plan.needs, offers)
            if self._elastic is None and self.has_met_all:
                problems = [unmet]
            else:
                logger.warning("waiting for other workers: %s", unmet)
        if problems:
            self.close()
            raise ClusterError("\n".join(problems))
        self._versions = {address: versions[address] for address in greetings}
        self._known.update(greetings)
        return [self._joined(address, greeting) for address, greeting in greetings.items()]

    def _ask(
        self,
        function: Callable[..., Any],
        *arguments: object,
        workers: Collection[str] | None = None,
        seconds: float | None = None,
    ) -> dict[str, Any]:
        """Return the answers of workers, by address; lost and silent workers have none."""
        if workers is None:
            workers = list(self._client.scheduler_info(n_workers=-1)["workers"])
        return dict(self._client.sync(self._ask_each, function, arguments, workers, seconds))

    async def _ask_each(
        self,
        function: Callable[..., Any],
        arguments: tuple[object, ...],
        workers: Collection[str],
        seconds: float | None,
    ) -> dict[str, Any]:
        async def ask(worker: str) -> Any:
            call = self._client.run(function, *arguments, workers=[worker], on_error="return")
            try:
                return (
                    await asyncio.wait_for(call, IMPORT_SECONDS if seconds is None else seconds)
                ).get(worker, NO_ANSWER)
            except TimeoutError:
                logger.warning("worker %s does not answer; it is not used before it does", worker)
                return NO_ANSWER

        answers = dict(zip(workers, await asyncio.gather(*map(ask, workers)), strict=True))
        for answer in answers.values():
            if isinstance(answer, Exception) and not isinstance(answer, OSError):
                raise answer
        return {
            worker: answer
            for worker, answer in answers.items()
            if answer is not NO_ANSWER and not isinstance(answer, Exception)
        }

    async def _send_plugin(self) -> None:
        """Register the plugin; what waits for this may give up, the scheduler goes on."""
        sending = asyncio.ensure_future(self._client.register_plugin(StagePlugin(self._plan)))
        sending.add_done_callback(self._note_sent)
        await asyncio.shield(sending)

    def _note_sent(self, sending: asyncio.Future[Any]) -> None:
        self._is_sent = True
        if not sending.cancelled():
            sending.exception()  # nobody else may look at it

    def _broadcast(self, call: Callable[[], Any], seconds: float) -> None:
        """Have something done on all workers; one that is silent is not waited for."""

        async def on_loop() -> None:
            await call()

        with suppress(OSError, TimeoutError):  # those that go at this moment do not need it
            self._client.sync(on_loop, callback_timeout=seconds)

    def _wait(self, patience: float) -> Iterator[None]:
        """Wait for a worker; yield before each look."""
        began, reason = time.monotonic(), ""
        while True:
            yield
            try:
                self._client.wait_for_workers(1, timeout=FIRST_WORKER_SECONDS)
            except TimeoutError:
                self._ask_for_first()  # the pool that was asked may have no room any more
                reason = self._check_patience(time.monotonic() - began, patience, reason)
            else:
                return

    def _check_patience(self, seconds: float, patience: float, reason: str) -> str:
        """Raise an error if no worker will come; log each new reason of waiting once."""
        elastic = self._elastic
        if elastic is not None and (trouble := elastic.trouble()) is not None:
            raise ClusterError(trouble)
        waiting = fixed_size_text(self._client) if elastic is None else elastic.waiting()
        if seconds > patience:
            paused = [*paused_workers(self._client.scheduler_info(n_workers=-1)["workers"])]
            why = "".join(f"; {paused_text(worker)}" for worker in paused[:1]) or f"; {waiting}"
            raise ClusterError(
                f"the cluster must have a worker, it has none after {patience:.0f} s{why}. "
                "Timeouts(workers_seconds=...), or --workers-timeout, sets how long a run waits"
            )
        if waiting != reason and (elastic is not None or not is_starting(self._client)):
            logger.warning("waiting for a worker; %s", waiting)
        return waiting

    def _ask_for_first(self) -> None:
        """Ask the first pool whose workers may fit the study for one; refuse if there is none."""
        if self._elastic is None:
            return
        pools, needs = self._elastic.pools(), self._plan.needs
        fitting = [pool for pool in pools if pool.may_fit(needs)]
        if pools and not fitting:
            raise ClusterError(unmet_text(needs, [pool.offer for pool in pools]))
        if fitting:
            first = min(fitting, key=lambda pool: (not pool.room, not needs.fits(pool.offer)))
            self._elastic.use({first.name: 1}, (), {})

    def claims(self, worker: str, needs: Mapping[str, float]) -> dict[str, float] | None:
        """Return the Dask resources that a stage occupies on a worker.

        That is what it needs, and in any case the GPU of a worker that has one: the
        trainer is put there.
        """
        claims = dict(needs)
        if self._resources.get(worker, {}).get("GPU", 0) > 0:
            claims.setdefault("GPU", min(1.0, self._resources[worker]["GPU"]))
        return claims or None

    def knows(self, worker: str) -> bool:
        """Whether a worker is there, as far as has been heard."""
        return worker in self._known

    def close(self) -> None:
        """Take the plugin off the workers and stop listening."""
        if not self._open:
            return
        self._open = False
        if self._client.status == "running":
            for topic in (TOPIC, "all"):
                # Or the scheduler finds the client gone while it still has news for it.
                with suppress(ValueError):  # not subscribed to yet
                    self._client.unsubscribe_topic(topic)
            name = self._plan.run
            # A scheduler that was started again, and the client has found, does not know it; a
            # worker that the scheduler did not reach has no plugin, and answers with a KeyError.
            with suppress(ValueError, KeyError):
                self._broadcast(
                    lambda: self._client.unregister_worker_plugin(name), SCHEDULER_ANSWER_SECONDS
                )

    def _on_membership(self, event: tuple[float, Mapping[str, Any]]) -> None:
        """Note workers that come and go; runs in Dask's event loop."""
        content = event[1]
        if not isinstance(content, Mapping) or not self._open:
            return
        if content.get("action") == "remove-worker":
            self._leave(content["worker"])
        elif content.get("action") == "add-worker":
            self._meet(content["worker"])

    def look_around(self) -> bool:
        """Compare, now and then, with the scheduler's list of workers: events may have been lost.

        Returns whether the scheduler is the one that was there before.
        """
        now = time.monotonic()
        timeouts = self._timeouts
        if now - self._looked < min(timeouts.waits.look_seconds, timeouts.silence_seconds / 4):
            return True
        self._looked = now
        try:
            identity = self._client.sync(self._identity, callback_timeout=SCHEDULER_ANSWER_SECONDS)
        except (OSError, TimeoutError):
            return True  # heard of by the client's status, if it is gone
        if identity["id"] != self._scheduler and self._scheduler:
            return False
        present = self._heard_of(identity["workers"], time.monotonic())
        self.paused = frozenset(paused_workers(identity["workers"]))
        self.resting = frozenset(_resting(identity["workers"])) & self.paused
        for address in present - self._known:
            self._meet(address)
        for address in self._known - present:
            self._leave(address)
        return True

    async def _identity(self) -> dict[str, Any]:
        scheduler = self._client.scheduler
        if scheduler is None:
            raise OSError("the client is not connected")
        return dict(await scheduler.identity())

    def _heard_of(self, infos: Mapping[str, Mapping[str, Any]], now: float) -> set[str]:
        """Return the workers that were heard of lately.

        Only whether the scheduler hears of them anew is looked at: its clock is its own.
        """
        heard = {}
        for address, info in infos.items():
            at, since = self._heard.get(address, (None, now))
            heard[address] = (info["last_seen"], since if at == info["last_seen"] else now)
        self._heard = heard
        silent = {
            address
            for address, (_, since) in self._heard.items()
            if now - since > self._timeouts.silence_seconds
        }
        for address in silent - self._silent:
            logger.warning(
                "worker %s has said nothing for %.0f s; what it ran goes on elsewhere",
                address,
                self._timeouts.silence_seconds,
            )
        for address in self._silent & (heard.keys() - silent):
            logger.warning("worker %s is heard of again", address)
        self._silent = silent
        return heard.keys() - silent

    def _meet(self, address: str) -> None:
        # Not in the event loop: greeting waits for an answer that the loop brings.
        self._known.add(address)
        threading.Thread(target=self._greet, args=(address,), daemon=True).start()

    def _leave(self, address: str) -> None:
        self._known.discard(address)
        with self._lock:
            self._processes.pop(address, None)
            self._versions.pop(address, None)
        self._put(WorkerLost(worker=address))

    def _greet(self, address: str) -> None:
        try:
            versions = self._ask(self._find_versions(), workers=[address])
            with self._lock:
                known = dict(self._versions)
            self._refuse({**known, **versions})
            greeting = self._ask(greet, self._plan.run, workers=[address])[address]
            installed = versions[address]
            if greeting["problem"] == NO_PLUGIN and self._is_sent and self._open:
                # The scheduler sends the plugin once. It does not reach a worker whose event
                # loop stands still then, and that worker would be greeted in vain for ever.
                logger.warning("worker %s has missed the plugin; it gets it now", address)
                self._ask(install, StagePlugin(self._plan), workers=[address])
        except ClusterError as error:
            logger.warning("not used: %s", error)
            return
        except Exception as error:  # noqa: BLE001 - a worker that is not greeted is never used
            if not isinstance(error, OSError | KeyError | ValueError):
                logger.warning("worker %s cannot be greeted: %r", address, error)
            self._known.discard(address)  # gone, or not quite there yet
            return
        if not self._open:
            return
        if greeting["problem"] == NO_PLUGIN:
            self._known.discard(address)  # the next look meets it again
            return
        problem = self._problem_of(address, greeting)
        if problem is None and address in self._known:
            with self._lock:
                self._versions[address] = installed
            self._put(self._joined(address, greeting))
        elif problem is not None:
            logger.warning("not used: worker %s: %s", address, problem)

    def _refuse(self, versions: Mapping[str, Versions]) -> None:
        """Refuse workers, by address, whose packages are not what they must be.

        Raises a `ClusterError` that names every such worker. Logs smaller differences, once for
        each package.
        """
        problems, warnings = compare(versions, is_exact=self._plan.is_exact)
        if problems:
            raise ClusterError("\n".join(problems))
        for package in warnings.keys() - self._warned:
            self._warned.add(package)
            logger.warning("%s", warnings[package])

    def _joined(self, address: str, greeting: Mapping[str, Any]) -> WorkerJoined:
        if greeting["threads"] > 1:
            warnings.warn(
                f"worker {address} has {greeting['threads']} threads; a slot uses one, start "
                "more workers of one thread instead",
                stacklevel=2,
            )
        self._resources[address] = greeting["resources"]
        if greeting["leaving"]:
            self._put(LeaveAnnounced(worker=address))
        return WorkerJoined(
            worker=address,
            resources=greeting["resources"],
            kind=greeting["class"],
            tags=frozenset(greeting["tags"]),
            host=_host_of(address),
            numerics=NumericClass(name=greeting["numerics"]),
            device=greeting["device"],
            device_bytes=greeting["device_bytes"],
            gpu=greeting["gpu"],
        )

    def _problem_of(self, address: str, greeting: Mapping[str, Any]) -> str | None:
        if greeting["problem"]:
            return str(greeting["problem"])
        process = greeting["process"]
        with self._lock:  # several are greeted at a time
            others = [own for worker, own in self._processes.items() if worker != address]
            self._processes[address] = process
        shared = process == this_process() or process in others
        if self._plan.store.startswith("memory://") and process != this_process():
            return (
                "a memory:// store is seen by one process only; use a folder, or in-process "
                "workers (LocalCluster(processes=False))"
            )
        if self._plan.needs_process and shared:
            return (
                f"{self._plan.code.qualname} uses process-wide generators and thread counts, so "
                "each worker must be a process of its own (LocalCluster(processes=True))"
            )
        return None


def _offer_of(greeting: Mapping[str, Any]) -> Offer:
    return Offer.of(greeting["resources"], greeting["class"], greeting["tags"])


def paused_workers(infos: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the workers that Dask has paused."""
    for address, info in infos.items():
        if info["status"] == Status.paused.name:
            yield address


def paused_text(worker: str) -> str:
    """Return in words that Dask has paused a worker, and what helps."""
    return (
        f"Dask has paused worker {worker}: it uses nearly all of its memory_limit. It gets no "
        "stage until it uses less. Start workers with a higher limit, or with memory_limit=0, "
        "which is none"
    )


def _resting(infos: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the workers that execute nothing, as their last heartbeat has it."""
    for address, info in infos.items():
        if not info["metrics"].get("task_counts", {}).get("executing", 0):
            yield address


def _host_of(address: str) -> str:
    """Return the host of a worker; empty for one in a process, which has no host to fail."""
    try:
        return get_address_host(address)
    except ValueError:
        return ""
