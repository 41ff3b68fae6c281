"""Needs of configurations on real workers that are unlike."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, Scheduler, SpecCluster, Worker

import dasktune as dt
from dasktune._cluster.pools import WorkerPool
from dasktune._engine.timeouts import Waits
from dasktune._study.study import Study
from dasktune.errors import ClusterError
from dasktune.needs import Offer
from tests.toy_trainers import Adding
from tests.unlike_workers import unlike_workers

pytestmark = pytest.mark.cluster

SPACE = {"lr": [0.1, 0.2, 0.3], "model": ["deep", "flat"]}
STEPS = 6


@contextmanager
def study_of(folder: Path, needs: Any, **options: Any) -> Iterator[Study]:
    """Give a study whose trainer adds up its learning rate."""
    made = dt.create_study(
        Adding, name="needs", metric="loss", storage=folder, needs=needs, **options
    )
    with closing(made):
        yield made


def run(study: Study, client: Client, **space: Any) -> None:
    tuner = dt.algos.Grid(dt.Space({**SPACE, **space}), max_steps=STEPS)
    study.optimize(tuner, client=client, progress=False, last_line=False, check=False)


def by_resource(client: Client) -> dict[str, str]:
    """Return the address of the worker that has each resource."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return {name: address for address, has in workers.items() for name in has["resources"]}


def test_configurations_run_where_their_function_says(tmp_path: Path) -> None:
    def needs(hp: dict[str, Any]) -> Any:
        return {"GPU": 1} if hp["model"] == "deep" else {"tags": ["Lab3"]}

    with (
        unlike_workers({"GPU": 1}, {"tag:lab3": 1}, {}) as client,
        study_of(tmp_path, needs) as study,
    ):
        run(study, client)
        workers = by_resource(client)
        deep = {trial.number for trial in study.trials if trial.params["model"] == "deep"}
        for stage in study.stages():
            expected = workers["GPU"] if deep & set(stage.trials) else workers["tag:lab3"]
            assert stage.worker == expected
        assert {trial.state.value for trial in study.trials} == {"COMPLETE"}
        assert study.summary()["steps_executed"] == study.summary()["steps_unique"]


def test_configurations_run_where_their_branch_says(tmp_path: Path) -> None:
    deep = dt.Branch("deep", needs={"GPU": 1})
    flat = dt.Branch("flat", needs={"tags": "lab3"})
    with (
        unlike_workers({"GPU": 1}, {"tag:lab3": 1}, {}) as client,
        study_of(tmp_path, None) as study,
    ):
        run(study, client, model=[deep, flat])
        workers, models = by_resource(client), [trial.params["model"] for trial in study.trials]
        for stage in study.stages():
            is_deep = "deep" in {models[trial] for trial in stage.trials}
            assert stage.worker == workers["GPU" if is_deep else "tag:lab3"]
        assert models.count("deep") == models.count("flat") == 3


def test_needs_change_no_state(tmp_path: Path) -> None:
    with unlike_workers({"GPU": 1}, {}) as client:
        with study_of(tmp_path, None) as study:
            run(study, client)
            plain = study.trials
        with study_of(tmp_path, lambda hp: {"GPU": 1}, load_if_exists=True) as study:
            run(study, client)
            assert study.summary()["steps_executed"] == study.summary()["steps_unique"]
            assert [trial.values for trial in study.trials] == [trial.values for trial in plain]


def test_unmet_needs_of_a_configuration_are_refused_first(tmp_path: Path) -> None:
    def needs(hp: dict[str, Any]) -> Any:
        return [{"tags": "h10O"}, {"GPU": 2}] if hp["model"] == "deep" else None

    with unlike_workers({"GPU": 1, "tag:h100": 1}, {}) as client:
        with study_of(tmp_path, needs) as study:
            with pytest.raises(ClusterError) as refused:
                run(study, client)
            assert study.stages() == []
        text = str(refused.value)
        assert text.startswith("trials 0, 2, 4: no worker has ")
        assert "a tag 'h10o', nearest is 'h100'" in text
        assert re.search(r"; workers: .*\bGPU \(GPU=1, tags ", text)
        assert re.search(r" cores? \(tags ", text)  # the name of a processor may come before
        with study_of(tmp_path, {"tags": "h100"}, load_if_exists=True) as study:
            run(study, client)
            assert {stage.worker for stage in study.stages()} == {by_resource(client)["GPU"]}


class Coming(SpecCluster):
    """A pool that starts a second worker, with the tag ``big``, once a run uses the pool."""

    coming = (Offer.of({}, "jobs"),)

    def use(
        self, wanted: Mapping[str, int], idle: Collection[str], step_seconds: Mapping[str, float]
    ) -> None:
        # The first call asks for a first worker, before the run begins.
        if step_seconds and len(self.worker_spec) == 1:
            self.scale(2)

    def trouble(self) -> str | None:
        return None

    def waiting(self) -> str:
        return "one job is queued"

    def pools(self) -> list[WorkerPool]:
        return [WorkerPool(name=offer.kind, offer=offer, room=2) for offer in self.coming]


@contextmanager
def coming_workers() -> Iterator[Client]:
    common = {"nthreads": 1, "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    tagged = {**common, "resources": {"tag:big": 1}}
    served = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    with (
        Coming(
            scheduler={"cls": Scheduler, "options": served},
            workers={0: {"cls": Worker, "options": common}},
            worker={"cls": Worker, "options": tagged},
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.mark.parametrize("needs", [{"tags": "big"}, lambda hp: {"tags": "big"}])
def test_pool_is_waited_for_until_a_worker_fits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, needs: Any
) -> None:
    with coming_workers() as client, study_of(tmp_path, needs) as study:
        run(study, client)
        big = by_resource(client)["tag:big"]
        assert {stage.worker for stage in study.stages()} == {big}
    assert "no worker has tag big; no worker has a tag 'big'" in caplog.text


@pytest.mark.parametrize("needs", [{"GPU": 1}, lambda hp: {"GPU": 1, "tags": "big"}])
def test_pool_without_the_amounts_is_refused(tmp_path: Path, needs: Any) -> None:
    with coming_workers() as client, study_of(tmp_path, needs) as study:
        with pytest.raises(ClusterError, match=r"no worker has GPU=1.*jobs \(neither"):
            run(study, client)
        assert study.stages() == []


class LoseGpu(dt.Callback):
    """Closes the worker with the GPU at the first report."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.is_done = False

    def on_report(self, study: Any, trial: Any, report: Any) -> None:
        if not self.is_done:
            self.is_done = True
            self.client.retire_workers([by_resource(self.client)["GPU"]])


class StartGpu(logging.Handler):
    """Starts a worker with a GPU once the log says that stages wait for one."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self.client = client
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("stages wait:"):
            self.said.append(record.getMessage())
            self.client.cluster.scale(len(self.client.cluster.worker_spec) + 1)


def test_class_that_disappears_is_waited_for_and_named(tmp_path: Path) -> None:
    def needs(hp: dict[str, Any]) -> Any:
        return {"GPU": 1} if hp["model"] == "deep" else None

    timeouts = dt.Timeouts(waits=Waits(heartbeat_seconds=0.05, heartbeat_share=1.0))
    # More trials than the worker that is lost can be sent before the first report is heard of.
    space = {**SPACE, "lr": [0.1 * number for number in range(1, 13)]}
    tuner = dt.algos.Grid(dt.Space(space), max_steps=STEPS)
    with unlike_workers({}, {"GPU": 1}) as client, study_of(tmp_path, needs) as study:
        client.cluster.new_spec = {**client.cluster.worker_spec[1]}
        handler, logger = StartGpu(client), logging.getLogger("dasktune._driver.heartbeat")
        logger.addHandler(handler)
        try:
            study.optimize(
                tuner,
                client=client,
                callbacks=[LoseGpu(client)],
                timeouts=timeouts,
                progress=False,
                last_line=False,
                check=False,
            )
        finally:
            logger.removeHandler(handler)
        assert {trial.state.value for trial in study.trials} == {"COMPLETE"}
        assert study.summary()["steps_repeated"] == 0
    assert handler.said
    assert "to run: no worker has GPU=1; workers: " in handler.said[0]


def test_needs_function_of_many_lines_fails_in_one_line(tmp_path: Path) -> None:
    def needs(hp: dict[str, Any]) -> Any:
        raise OSError("no answer\n\x1b[31mfrom node7\n" * 100)

    with unlike_workers({}) as client, study_of(tmp_path, needs) as study:
        run(study, client, lr=[0.1], model="deep")
        (error,) = {trial.error for trial in study.trials}
    assert error is not None
    assert error.startswith("needs must be known for {'lr': 0.1, 'model': 'deep'}: OSError: no ans")
    assert error.isprintable()
    assert len(error) < 400


def test_worker_with_a_tag_that_no_message_can_show_is_refused(tmp_path: Path) -> None:
    with (
        unlike_workers({"tag:\x1b[31mred": 1}) as client,
        study_of(tmp_path, None) as study,
        pytest.raises(ClusterError, match=r"a tag .* must be printable") as refused,
    ):
        run(study, client)
    assert str(refused.value).isprintable()


def test_configuration_without_sound_needs_fails_alone(tmp_path: Path) -> None:
    def needs(hp: dict[str, Any]) -> Any:
        if hp["lr"] == 0.1:
            raise KeyError("size")
        return {"GPU": -1} if hp["lr"] == 0.2 else {"GPU": 1}

    with unlike_workers({"GPU": 1}) as client:
        with study_of(tmp_path, needs) as study:
            run(study, client, model="deep")
            raised, nonsense, sound = study.trials
            assert [trial.state.value for trial in study.trials] == ["FAIL", "FAIL", "COMPLETE"]
            assert raised.error == (
                "needs must be known for {'lr': 0.1, 'model': 'deep'}: KeyError: 'size'"
            )
            assert nonsense.error == (
                "needs must be finite numbers > 0 by name, got {'GPU': -1}, for "
                "{'lr': 0.2, 'model': 'deep'}"
            )
            assert sound.error is None
        with study_of(tmp_path, lambda hp: {"GPU": 1}, load_if_exists=True) as study:
            study.retry_failed()
            run(study, client, model="deep")
            assert {trial.state.value for trial in study.trials} == {"COMPLETE"}
