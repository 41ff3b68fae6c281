"""Several studies on one cluster: each gets its share of the workers, from step to step."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest
from distributed import Client, LocalCluster, Scheduler, Worker, get_worker

import dasktune as dt
from dasktune._cluster.arbiter import CLAIM, NAME, ArbiterPlugin
from dasktune._driver.fair_share import FairShare
from dasktune._driver.worker_demand import WorkerDemand
from dasktune._engine.timeouts import UNANSWERED_SECONDS
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import Granted, WorkerJoined, WorkersJoined
from dasktune.graph.fair_shares import StudyShares
from dasktune.graph.view import RunView
from dasktune.sequences import Constant
from tests.holding import wait_until

from . import turns

pytestmark = pytest.mark.cluster

STEPS = 10_000


class Paced(dt.Trainer):
    """Trains a step when it may."""

    def build(self, hp: Mapping[str, Any]) -> None:
        self.x = 0.0

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.study, self.by = hp["study"], hp["by"]

    def train(self) -> None:
        # By name, so that the trainer's code, which travels by value, does not hold a copy of it.
        import_module("tests.driver.turns").train_a_step(get_worker().address, self.study)
        self.x += self.by

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.x}

    def state_dict(self) -> dict[str, object]:
        return {"x": self.x}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.x = state["x"]


@pytest.fixture
def client() -> Iterator[Client]:
    turns.TRAINING.clear()
    with (
        LocalCluster(
            n_workers=4, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as connected,
    ):
        arbiter = ArbiterPlugin(StudyShares(patience_seconds=0.0))
        connected.register_plugin(arbiter)
        yield connected


class Run:
    """A study that runs in a thread of its own."""

    def __init__(
        self, name: str, folder: Path, client: Client, *, store: str = "", **options: Any
    ) -> None:
        self.study = dt.create_study(
            Paced, name=name, storage=folder / (store or name), metric="loss", **options
        )
        self._client = client
        # Studies with one store ask for the same trials.
        self._thread = threading.Thread(target=self._optimize, args=(store or name,))
        self._thread.start()

    def _optimize(self, name: str) -> None:
        space = dt.Space(by=[float(number) for number in range(8)], study=name)
        tuner = dt.algos.Grid(space, max_steps=STEPS)
        self.study.optimize(tuner, client=self._client, progress=False, last_line=False)

    def close(self) -> None:
        """Stop the run; what trains is saved at its next step."""
        with closing(self.study):
            self.study.stop()
            wait_until(lambda: turns.PERMITS.release(8) or not self._thread.is_alive())
            self._thread.join()


def wait_for_workers_of(**studies: int) -> None:
    """Wait until each study trains on so many workers."""
    wait_until(
        lambda: turns.PERMITS.release(4) or Counter(turns.TRAINING.values()) == Counter(studies)
    )


def test_share_of_a_study_follows_those_that_come_and_go(tmp_path: Path, client: Client) -> None:
    with ExitStack() as runs:
        first = runs.enter_context(closing(Run("first", tmp_path, client)))
        wait_for_workers_of(first=4)
        second = Run("second", tmp_path, client)
        with closing(second):
            wait_for_workers_of(first=2, second=2)
        wait_for_workers_of(first=4)
    assert first.study.summary()["steps_repeated"] == 0
    assert second.study.summary()["steps_repeated"] == 0


def test_heavier_study_gets_more_workers(tmp_path: Path, client: Client) -> None:
    with (
        closing(Run("light", tmp_path, client)),
        closing(Run("heavy", tmp_path, client, weight=3.0)),
    ):
        wait_for_workers_of(light=1, heavy=3)


def test_study_gets_only_workers_that_have_what_it_needs(tmp_path: Path, client: Client) -> None:
    first, *_ = client.scheduler_info(n_workers=-1)["workers"]

    async def give_a_disk(dask_worker: Worker) -> None:
        await dask_worker.set_resources(DISK=1)

    client.run(give_a_disk, workers=[first])
    with (
        closing(Run("any", tmp_path, client)),
        closing(Run("disk", tmp_path, client, needs={"DISK": 1})),
    ):
        wait_for_workers_of(any=3, disk=1)
        # Once the study has ended, the other one has this worker, too.
        assert turns.TRAINING[first] == "disk"


def gains(client: Client) -> list[float]:
    """Return the gains of all runs, the smallest first."""

    def read(dask_scheduler: Scheduler) -> list[float]:
        arbiter = dask_scheduler.plugins[NAME]
        assert isinstance(arbiter, ArbiterPlugin)
        return list(arbiter.shares.gains().values())

    found: list[float] = client.run_on_scheduler(read)
    return sorted(found)


def test_stage_that_serves_two_studies_counts_half_for_each(tmp_path: Path, client: Client) -> None:
    with closing(Run("first", tmp_path, client, store="common")):
        wait_for_workers_of(common=4)
        assert gains(client) == [0.0]
        with closing(Run("second", tmp_path, client, store="common")):
            # The second study wants the trials that the first one trains, and then other ones.
            wait_until(lambda: turns.PERMITS.release(4) or gains(client)[0] < 0)
            less, more = gains(client)
            assert less == -more


def test_malformed_claim_is_answered_with_its_problem(client: Client) -> None:
    async def claim() -> object:
        assert client.scheduler is not None
        return await getattr(client.scheduler, CLAIM)(
            run="run", client=client.id, workers=-1, weight=1.0, busy=[], usable=None
        )

    answer = client.sync(claim)
    assert answer == {"problem": "workers must be an int >= 0, got -1"}


def test_workers_of_a_driver_that_is_gone_are_lent_again(client: Client) -> None:
    async def claim(own: Client) -> dict[str, object]:
        assert own.scheduler is not None
        answer: dict[str, object] = await getattr(own.scheduler, CLAIM)(
            run=own.id, client=own.id, workers=9, weight=1.0, busy=[], usable=None
        )
        return answer

    assert client.sync(claim, client) == {"granted": None, "runs": 1}
    assert client.scheduler is not None
    with Client(client.scheduler.address, set_as_default=False) as other:
        assert other.sync(claim, other)["runs"] == 2
        assert client.sync(claim, client)["runs"] == 2
    wait_until(lambda: client.sync(claim, client) == {"granted": None, "runs": 1})


def connected_to(arbiter: ArbiterPlugin, stack: ExitStack) -> Client:
    """Return a client of a cluster of two workers that are granted by an arbiter."""
    cluster = stack.enter_context(
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        )
    )
    client = stack.enter_context(Client(cluster, set_as_default=False))
    client.register_plugin(arbiter)
    return client


def test_workers_of_a_driver_that_hangs_are_lent_again() -> None:
    async def claim(run: str) -> dict[str, object]:
        assert client.scheduler is not None
        answer: dict[str, object] = await getattr(client.scheduler, CLAIM)(
            run=run, client=client.id, workers=9, weight=1.0, busy=workers, usable=None
        )
        return answer

    arbiter = ArbiterPlugin(StudyShares(patience_seconds=0.0), silent_seconds=0.0)
    with ExitStack() as stack:
        client = connected_to(arbiter, stack)
        workers = [*client.scheduler_info(n_workers=-1)["workers"]]
        assert client.sync(claim, "hangs") == {"granted": None, "runs": 1}
        assert client.sync(claim, "other") == {"granted": None, "runs": 1}


class Fixed:
    """A demand that is the same at any time."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def at(self, now: float) -> WorkerDemand:
        return WorkerDemand(workers=self.workers)


class BrokenStudyShares(StudyShares):
    """Answers no claim."""

    def claim(self, *args: object, **kwargs: object) -> frozenset[str]:
        raise KeyError("broken")


def test_run_goes_on_without_shares_where_the_arbiter_raises() -> None:
    view, got = RunView(Dispatcher("root")), list[object]()
    with ExitStack() as stack:
        client = connected_to(ArbiterPlugin(BrokenStudyShares()), stack)
        share = stack.enter_context(
            closing(FairShare(view, Fixed(2), run="run", weight=1.0, put=got.append))
        )
        share.use(client, [])
        assert share.granted.workers is None
        assert got == []


class FailingStudyShares(StudyShares):
    """Lends one worker, and later answers no claim until it is mended.

    The scheduler has a copy of the object: the flag is one of the class.
    """

    is_broken = False

    def claim(self, *args: object, **kwargs: object) -> frozenset[str]:
        if self.is_broken:
            raise KeyError("broken")
        return frozenset({"one"})


def test_run_uses_all_workers_after_an_arbiter_failed_for_long(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def claim(run: str) -> object:
        assert client.scheduler is not None
        return await getattr(client.scheduler, CLAIM)(
            run=run, client=client.id, workers=9, weight=1.0, busy=[], usable=None
        )

    got: queue.SimpleQueue[Granted] = queue.SimpleQueue()
    with ExitStack() as stack:
        client = connected_to(ArbiterPlugin(FailingStudyShares()), stack)
        client.sync(claim, "other")
        view = RunView(Dispatcher("root"))
        share = stack.enter_context(
            closing(FairShare(view, Fixed(2), run="run", weight=1.0, put=got.put))
        )
        share.use(client, [])
        assert share.granted == Granted(workers=frozenset({"one"}))
        monkeypatch.setattr(FailingStudyShares, "is_broken", True)
        clock = count(UNANSWERED_SECONDS, UNANSWERED_SECONDS)
        share.turn(next(clock))  # it may begin long after the first answer
        assert got.empty()
        wait_until(lambda: share.turn(next(clock)) or not got.empty())
        assert got.get(timeout=60) == Granted(workers=None)
        assert "it uses all of them now" in caplog.text
        monkeypatch.setattr(FailingStudyShares, "is_broken", False)
        share.turn(next(clock))
        assert got.get(timeout=60) == Granted(workers=frozenset({"one"}))
        monkeypatch.setattr(FailingStudyShares, "is_broken", True)
        share.turn(next(clock))
    assert got.empty(), "patience begins anew with each answer"


class HearingStudyShares(StudyShares):
    """Keeps the busy workers of each claim, with the class, as the scheduler has a copy."""

    busy: ClassVar[list[object]] = []

    def claim(self, *args: Any, **kwargs: Any) -> frozenset[str]:
        self.busy.append(args[3])
        return frozenset()


def test_shared_device_is_kept_until_all_its_workers_are_done() -> None:
    dispatcher = Dispatcher("root")
    dispatcher.handle(WorkerJoined(worker="w1", device="gpu0"), 0.0)
    dispatcher.register(0, {"lr": Constant(0.1)}, 10)
    dispatcher.extend(0, 10, 0.0, 0.0)
    dispatcher.handle(WorkerJoined(worker="w0", device="gpu0"), 0.0)
    assert dispatcher.slots["w1"].queue
    HearingStudyShares.busy.clear()
    with ExitStack() as stack:
        client = connected_to(ArbiterPlugin(HearingStudyShares()), stack)
        share = FairShare(
            RunView(dispatcher), Fixed(2), run="run", weight=1.0, put=list[object]().append
        )
        stack.enter_context(closing(share)).use(client, [])
        share.turn(1.0)
        wait_until(lambda: len(HearingStudyShares.busy) == 2)
    assert HearingStudyShares.busy == [frozenset(), frozenset({"w0"})]


def test_first_claim_asks_for_one_worker_of_each_device() -> None:
    got = list[object]()
    with ExitStack() as stack:
        client = connected_to(ArbiterPlugin(StudyShares(patience_seconds=0.0)), stack)
        own, extra = sorted(client.scheduler_info(n_workers=-1)["workers"])
        joined = [WorkerJoined(worker=worker, device="gpu0") for worker in (extra, own)]
        dispatcher = Dispatcher("root")
        dispatcher.handle(WorkersJoined(workers=tuple(joined)), 0.0)
        first = FairShare(RunView(dispatcher), Fixed(2), run="first", weight=1.0, put=got.append)
        stack.enter_context(closing(first)).use(client, joined)
        second = FairShare(
            RunView(Dispatcher("root")), Fixed(2), run="second", weight=1.0, put=got.append
        )
        stack.enter_context(closing(second)).use(client, joined)
        assert second.granted.workers is not None
        assert extra not in second.granted.workers


def test_run_claims_as_soon_as_its_first_workers_have_joined() -> None:
    got: queue.SimpleQueue[Granted] = queue.SimpleQueue()
    with ExitStack() as stack:
        client = connected_to(ArbiterPlugin(StudyShares(patience_seconds=0.0)), stack)
        dispatcher = Dispatcher("root")
        demand = Fixed(0)
        views = RunView(Dispatcher("root")), RunView(dispatcher)
        other, share = (
            FairShare(view, demand, run=str(id(view)), weight=1.0, put=got.put) for view in views
        )
        stack.enter_context(closing(other)).use(client, [])
        stack.enter_context(closing(share)).use(client, [])
        share.turn(1.0)
        for worker in client.scheduler_info(n_workers=-1)["workers"]:
            dispatcher.handle(WorkerJoined(worker=worker), 0.0)
        demand.workers = 2
        share.turn(1.0)
        assert got.get(timeout=60).workers == dispatcher.slots.keys()


def test_plugin_is_registered_once(client: Client) -> None:
    client.register_plugin(ArbiterPlugin())
    names = client.run_on_scheduler(lambda dask_scheduler: [*dask_scheduler.plugins])
    assert names.count(NAME) == 1
