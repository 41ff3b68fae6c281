"""The part of dasktune that Dask imports on workers; light, since schedulers import it too.

A scheduler unpickles every function that is submitted, in its event loop: so `run_stage`
lives here, takes plain data, and what is heavy is imported by workers alone, when their
plugin is set up.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeGuard, cast
from weakref import WeakSet

from distributed import Worker, WorkerPlugin, get_worker
from distributed.comm.core import Comm
from distributed.core import Status
from distributed.threadpoolexecutor import ThreadPoolExecutor

from dasktune._engine.timeouts import (
    LAST_MESSAGES_SECONDS,
    LAST_WRITES_SECONDS,
    LEAVE_SECONDS,
    NANNY_SECONDS,
    STEP_WATCH_SECONDS,
)
from dasktune._worker.hardware import describe_worker
from dasktune._worker.job import AuditSpec, JobPlan, StageSpec, open_job, this_process
from dasktune._worker.lending import WorkerLenders, lending
from dasktune._worker.messages import (
    LeaveAnnounced,
    PredictionAnswer,
    StageEnded,
    StageMessage,
    StageMessages,
    StageProgress,
    StageStarted,
    StateOmitted,
    StateSaved,
    WorkerMessage,
    packed,
    receipt_from_wire,
    to_wire,
    unpacked,
)
from dasktune._worker.outbox import Outbox
from dasktune._worker.shared_device import describe_sharing
from dasktune.errors import text_of
from dasktune.trainer.gpu_memory import take_gpu_memory_as_needed
from dasktune.trainer.isolation import give_own_generator

TOPIC = "dasktune"
NO_PLUGIN = "the plugin is not there"
"""What a worker answers that has not been made ready yet."""

LEAVE_AT = "DASKTUNE_LEAVE_AT"
"""Variable that says when a worker takes no more stages (epoch seconds): its host ends it soon."""

CLOSE_SECONDS = "DASKTUNE_CLOSE_SECONDS"
"""Variable that says how long a worker has to save when it is told to end (SIGTERM)."""

PROFILING_IS_SAFE = sys.version_info >= (3, 11, 9)
"""Whether Dask may look at a worker's frames while it trains.

Older Pythons may stop for ever in `sys._current_frames`, the GIL held, if garbage is collected
there [python/cpython#106883]; Dask's profiler calls that a hundred times a second.
"""


_WORKERS: WeakSet[Worker] = WeakSet()
"""The workers of this process on which a study has run."""


class StagePlugin(WorkerPlugin):
    """Puts a `dasktune._worker.host.StageHost` on each worker and connects it with Dask.

    `may_profile`: whether Dask may profile the worker; None leaves that to the worker's Python.
    """

    idempotent = True

    def __init__(self, plan: JobPlan, *, may_profile: bool | None = None) -> None:
        self.plan = plan
        self.may_profile = may_profile
        self.name = plan.run
        self.problem: str | None = None
        self.numerics = self.gpu = ""

    def setup(self, worker: Worker) -> None:
        """Open the trainer's code and start the host; a failure is kept for `greet`."""
        from dasktune._worker.host import StageHost

        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._outbox = Outbox(self._send_together, self._call_later, time.monotonic)
        _WORKERS.add(worker)
        self._is_closed = False
        self.is_leaving = self.is_replaced = self.is_at_rest = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        if not (PROFILING_IS_SAFE if self.may_profile is None else self.may_profile):
            stop_profiling(worker)
        if self.plan.driver != this_process():
            take_gpu_memory_as_needed()
        try:
            job = open_job(self.plan, worker.state.total_resources)
        except Exception as error:  # noqa: BLE001 - a module of the user's may run here
            self.problem = f"{type(error).__name__}: {text_of(error)}"
            return
        self.numerics, self.gpu = job.numerics, job.gpu
        self._workers = WorkerLenders(worker, self.plan.run)
        self.host = StageHost(job, self._emit, self._give_up_from_thread, workers=self._workers)
        if self.plan.needs_process or job.is_own_process:
            give_own_generator()  # now that the store's client is loaded, too
        worker.handlers[self.plan.run] = self._control
        worker.handlers[predicting(self.plan.run)] = self._predict
        worker.handlers[lending(self.plan.run)] = self._lend
        # Of daemon threads: a predictor that hangs must not keep the process from ending.
        self._thinking = ThreadPoolExecutor(1, thread_name_prefix="dasktune-predictions")
        if self.plan.driver != this_process():
            GentleEnd.prepare(worker)
        if self.plan.step_seconds is not None:
            self._begin(self._watch(self.plan.step_seconds))
        if LEAVE_AT in os.environ:
            seconds = float(os.environ[LEAVE_AT]) - time.time()
            self._timer = self._loop.call_later(max(0.0, seconds), self.begin_to_leave)

    def begin_to_leave(self, *, closes: bool = True) -> None:
        """Take no more stages; once the last one has ended, rest, or also close the worker."""
        self._begin(self._leave(closes=closes))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _announce_leave(self) -> None:
        """Announce that this worker leaves: it gets no more stages, and its loss is blameless."""
        self.is_leaving = True
        self._outbox.flush()
        self._send(LeaveAnnounced(worker=self._worker.address))

    async def _watch(self, seconds: float) -> None:
        """Replace this process when a step takes longer than so many seconds.

        While all of the process stands still (suspended, or its machine is), no step can end.
        """
        interval = min(STEP_WATCH_SECONDS, seconds / 10)
        while not self._is_closed and not self.is_replaced:
            looked = time.monotonic()
            await asyncio.sleep(interval)
            self.host.give_up(seconds, stood_still=time.monotonic() - looked - interval)

    def _give_up_from_thread(self) -> None:
        """Announce, before any other message, that this process ends; begin to end it."""
        if not self.is_replaced:
            self.is_replaced = True
            self._announce_leave()
            self._loop.call_soon_threadsafe(self._begin_to_be_replaced)

    def _begin_to_be_replaced(self) -> None:
        self._begin(self._replace())

    async def _replace(self) -> None:
        """End this process, in which nothing can be trained any more, once all is saved.

        A nanny, SLURM or whoever else keeps workers starts another. Where the process is not
        the worker's alone, the worker alone is closed.
        """
        worker = self._worker
        await asyncio.to_thread(self.host.writer.finish, LAST_WRITES_SECONDS)
        await asyncio.sleep(LAST_MESSAGES_SECONDS)
        if self.plan.driver == this_process() or len(_WORKERS) > 1:
            self._is_closed = True  # nobody waits for the thread that hangs
            await worker.close(reason="dasktune-gives-up", executor_wait=False)
        else:
            os._exit(1)

    async def _leave(self, *, closes: bool) -> None:
        """Announce that this worker leaves; it is at rest once it has been idle for a bit."""
        worker, idle_since = self._worker, time.monotonic()
        self._announce_leave()
        while time.monotonic() - idle_since < LEAVE_SECONDS:
            await asyncio.sleep(LEAVE_SECONDS / 10)
            if any(plugin.is_busy for plugin in worker.plugins.values() if _is_stage(plugin)):
                idle_since = time.monotonic()
        self.is_at_rest = True
        if closes and not self._is_closed:
            await worker.close(reason="dasktune-leaves", nanny=True)

    @property
    def is_busy(self) -> bool:
        """Whether something is trained, or not durable yet."""
        return self.problem is None and (self.host.is_busy or self._workers.is_busy)

    async def teardown(self, worker: Worker) -> None:
        """Save what runs: the worker is closing, or the study is done with it.

        The worker waits for it, and what was saved is heard of while it still can be.
        """
        worker.handlers.pop(self.plan.run, None)
        worker.handlers.pop(predicting(self.plan.run), None)
        worker.handlers.pop(lending(self.plan.run), None)
        if self.problem is None:
            self._thinking.shutdown(wait=False)
        if self._timer is not None:
            self._timer.cancel()
        await self.finish()

    async def finish(self) -> None:
        """Announce that this worker leaves, and save the running stage."""
        if self.problem is None and not self._is_closed:
            self._is_closed = True
            if not self.is_leaving:
                self._announce_leave()
            closing = asyncio.to_thread(self.host.close, _close_seconds())
            await asyncio.gather(closing, self._workers.close(_close_seconds()))
            self._outbox.flush()

    def transition(self, key: object, start: str, finish: str, **_: object) -> None:
        """Stop a stage that Dask cancelled, also because its driver died."""
        released = start in ("executing", "long-running") and finish == "released"
        if released and self.problem is None and is_stage_key(key, self.plan.run):
            self.host.abandon(key[-1])  # type: ignore[index]

    def _emit(self, messages: list[StageMessage]) -> None:
        """Send messages to the driver; from any thread."""
        self._outbox.put(messages, may_wait=all(map(self._may_wait, messages)))

    def _may_wait(self, message: StageMessage) -> bool:
        """Return whether a message may wait for the next one, which follows soon.

        The start of a stage waits for its end, and the end for the start of the next, if that is
        here.
        """
        if isinstance(message, StageEnded):
            state = self._worker.state
            return bool(state.ready or state.constrained or state.waiting)
        return isinstance(message, StageStarted | StageProgress | StateSaved | StateOmitted)

    def _send_together(self, messages: Collection[StageMessage]) -> None:
        self._send(StageMessages(worker=self._worker.address, messages=tuple(messages)))

    def _call_later(self, seconds: float, work: Callable[[], None]) -> None:
        """Call a function in the worker's event loop after so many seconds; from any thread."""
        with suppress(RuntimeError):  # the loop is closed: the driver learns all from the store
            self._loop.call_soon_threadsafe(self._loop.call_later, seconds, work)

    def _send(self, message: WorkerMessage) -> None:
        """Send a message to the driver; from any thread."""
        self._worker.log_event(TOPIC, {"run": self.plan.run, "message": packed(to_wire(message))})

    async def _control(
        self, attempt: str, save_at: int | None, stop_at: int | None, lost: str = ""
    ) -> str:
        """Take a save-point or a stop; called by the driver through the scheduler."""
        if lost:
            self._workers.lose(lost)
        control = self.host.control(attempt)
        if control is None:
            return "late"
        if save_at is None:
            control.stop(None if stop_at is None or stop_at < 0 else stop_at)
            return "ok"
        return "ok" if control.save_at(save_at) else "late"

    async def _lend(self, comm: Comm, rank: int) -> Status:
        """Lend a process to a worker that trains a trial on several devices."""
        self.host.trainers.make_room()
        return await self._workers.lend(comm, rank)

    def _predict(self, number: int, question: bytes) -> str:
        """Take a question; its answer is said when it is there.

        One at a time, in a thread of its own: it takes CPU time from the training, and nothing
        else.
        """
        self._thinking.submit(self._think, number, question)
        return "ok"

    def _think(self, number: int, question: bytes) -> None:
        """Send a prediction as JSON, or why there is none, unless the run is over."""
        if self._is_closed:
            return
        answer = _answer_or_why(question)
        if not self._is_closed:
            worker = self._worker.address
            self._send(PredictionAnswer(worker=worker, number=number, answer=answer))


def _answer_or_why(question: bytes) -> dict[str, object] | str:
    """Return a prediction, or in words why there is none: no predictor may end a worker."""
    try:
        return answer_to(question)
    except BaseException as error:  # noqa: BLE001 - a predictor of the user's may run here
        return f"{type(error).__name__}: {text_of(error)}"


def answer_to(question: bytes) -> dict[str, object]:
    """Return the answer as JSON to a question that `dasktune._driver.predictions` packed."""
    from dasktune.algos.curves.curve import Question
    from dasktune.algos.forest.priority import PriorityQuestion

    unpacked = pickle.loads(question)
    if isinstance(unpacked, PriorityQuestion):
        return unpacked.answer().to_json()
    packed, curve, steps, seed = unpacked
    asked = Question(predictor=_opened(packed), curve=curve, steps=steps, seed=seed)
    return asked.answer().to_json()


@lru_cache(maxsize=8)
def _opened(packed: bytes) -> Any:
    """Return a predictor, which each study packs once."""
    from dasktune.trainer.code import loads_apart

    return loads_apart(packed)


def stop_profiling(worker: Worker) -> None:
    """Stop a worker's profiler, also if it is only about to start."""
    for name in ("profile", "profile-cycle"):
        callback = worker.periodic_callbacks.pop(name, None)
        if callback is not None:
            callback.stop()


class GentleEnd:
    """Lets the process of its only worker end gently on SIGTERM: what runs is saved and reported.

    Dask would cut the connection first: nobody would hear of what is saved after that.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._before = signal.getsignal(signal.SIGTERM)
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def prepare(cls, worker: Worker) -> None:
        """Be ready for the signal, where this thread is the one that may hear it."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and not isinstance(signal.getsignal(signal.SIGTERM), cls):
            signal.signal(signal.SIGTERM, cls(worker))

    def __call__(self, number: int, _: object) -> None:
        """Begin to end; a second signal ends as it would have without this."""
        signal.signal(number, self._before)
        self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._end())

    async def _end(self) -> None:
        stages = [plugin for plugin in self._worker.plugins.values() if _is_stage(plugin)]
        await asyncio.gather(*(plugin.finish() for plugin in stages))
        await asyncio.sleep(LAST_MESSAGES_SECONDS)
        await self._worker.close(reason="dasktune-told-to-end", nanny=False)


def _close_seconds() -> float:
    return float(os.environ.get(CLOSE_SECONDS, NANNY_SECONDS))


def _is_stage(plugin: object) -> TypeGuard[StagePlugin]:
    return isinstance(plugin, StagePlugin)


def predicting(run: str) -> str:
    """Return the name of the handler that predicts for a run."""
    return f"{run}:predict"


def is_stage_key(key: object, run: str) -> bool:
    """Whether a Dask key names a stage of a run, or an audit."""
    names = (prefix_of(run), audit_prefix_of(run))
    return isinstance(key, tuple) and len(key) > 1 and key[0] in names


def prefix_of(run: str) -> str:
    """Return the first part of a run's Dask keys, which decides colour and progress bar."""
    return run.rpartition("-")[0] + ":stage"


def audit_prefix_of(run: str) -> str:
    """Return the first part of the Dask keys of a run's audits."""
    return run.rpartition("-")[0] + ":audit"


def run_stage(run: str, spec: bytes, before: bytes | None = None) -> bytes:
    """Train one stage of a run on the worker that calls this; return its receipt, packed.

    `spec` is a `dasktune._worker.job.StageSpec`, packed; `before` the packed receipt of the stage
    from which this one goes on, on the same worker.
    """
    plugin = cast(StagePlugin, get_worker().plugins[run])
    stage = StageSpec.unpack(spec)
    came_to_its_end = True
    if before is not None:
        receipt = receipt_from_wire(unpacked(before))
        came_to_its_end = (receipt.status, receipt.step) == ("trained", stage.start)
    ended = plugin.host.run(stage) if came_to_its_end else plugin.host.skip(stage)
    return packed(to_wire(ended))


def run_audit(run: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Train steps again on the worker that calls this, and compare; return a receipt.

    `spec` is a `dasktune._worker.job.AuditSpec` as plain data.
    """
    plugin = cast(StagePlugin, get_worker().plugins[run])
    return to_wire(plugin.host.audit(AuditSpec.from_wire(spec)))


async def install(plugin: StagePlugin, dask_worker: Worker) -> None:
    """Add the plugin of a run to the worker that calls this, unless the worker has it."""
    # A worker that only begins gets it from the scheduler, just after its status is set.
    is_ready = dask_worker.status == Status.running
    await asyncio.sleep(0)
    if is_ready and plugin.name not in dask_worker.plugins:
        await dask_worker.plugin_add(plugin, name=plugin.name)


def greet(run: str, dask_worker: Worker) -> dict[str, object]:
    """Return the greeting of a worker: facts that the driver needs before it uses the worker."""
    plugin = cast(StagePlugin | None, dask_worker.plugins.get(run))
    resources = dict(dask_worker.state.total_resources)
    return {
        "process": this_process(),
        "problem": NO_PLUGIN if plugin is None else plugin.problem,
        "resources": resources,
        **describe_worker(resources),
        "numerics": "" if plugin is None else plugin.numerics,
        "gpu": "" if plugin is None else plugin.gpu,
        **describe_sharing(resources),
        "threads": dask_worker.state.nthreads,
        "leaving": plugin is not None and plugin.is_leaving,
    }
