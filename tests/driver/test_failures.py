"""Failures of one trial, worker or state stay there, and the study goes on."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster

import dasktune as dt
from dasktune._cluster.local import local_client
from dasktune._study.study import Study
from dasktune.errors import ClusterError, ConfigurationError, TrainerError
from dasktune.sequences import Constant, Piecewise, Sequence
from dasktune.storage.checkpoints import CheckpointStore
from tests.forked import run_forked
from tests.holding import Gate, pass_gate, stop_order, wait_until

STEPS = 8
HELD = 2
"""Steps after which a trial passes the gate that may hold it."""


class UnreadableError(Exception):
    """Fails to make its text, as an error of C++ code with bytes of another encoding."""

    def __str__(self) -> str:
        return str(self.args[0].decode())

    __repr__ = __str__


class Walk(dt.Trainer):
    """Multiplies a number by 1 - lr at every step; goes wrong where its config says so."""

    ignored_config = ("log", "fault", "hold")

    def build(self, hp: Mapping[str, Any]) -> None:
        self.lr, self.done, self.x = hp["lr"], 0, 1.0
        self.meet("build")

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp["lr"]
        self.meet("setup")

    def train(self) -> None:
        self.meet("train")
        if self.done == HELD:
            pass_gate(self.config.get("hold", ""))
        self.x -= self.lr * self.x
        self.done += 1
        if "log" in self.config:
            with open(self.config["log"], "a") as file:
                file.write(f"{self.done} {self.x!r}\n")

    def evaluate(self) -> dict[str, float]:
        self.meet("evaluate")
        return {"loss": self.x}

    def state_dict(self) -> dict[str, Any]:
        self.meet("state_dict")
        return {"x": self.x, "done": self.done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.x, self.done = state["x"], state["done"]
        self.meet("load_state_dict")

    def meet(self, where: str) -> None:
        """Go wrong here if this is the place, the rate and the step."""
        fault = self.config.get("fault", {})
        if (fault.get("where"), fault.get("lr")) != (where, self.lr):
            return
        if self.done < fault.get("step", 0) or not self.is_first(fault.get("once")):
            return
        match fault["kind"]:
            case "exit":
                raise SystemExit(3)
            case "ctrl-c":
                raise KeyboardInterrupt
            case "die":
                wait_until(lambda: [*Path(fault["saved"]).rglob("commit")])
                os._exit(7)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "unreadable":
                raise UnreadableError(b"caf\xe9")
            case _:
                raise ValueError("bad luck")

    def is_first(self, once: str | None) -> bool:
        """Whether no process came here before; always if that does not matter."""
        try:
            return once is None or Path(once).touch(exist_ok=False) is None
        except FileExistsError:
            return False


class Immeasurable(Walk):
    def evaluate(self) -> dict[str, float]:
        return {"loss": {0.2: float("nan"), 0.3: float("-inf")}.get(self.lr, self.x)}


class Unstorable(Walk):
    def state_dict(self) -> dict[str, Any]:
        return {"x": self.x, "done": self.done, "parts": [1, {"hook": print}]}


SHARED: tuple[Sequence, ...] = (
    Constant(0.1),
    Piecewise([0.1, 0.2], boundaries=[4]),
    Piecewise([0.1, 0.3], boundaries=[4]),
)
SPACE = dt.Space(lr=list(SHARED))
UNIQUE = STEPS + 4 + 4
ALONE = [
    0.9**8,
    0.9**4 * 0.8**4,
    0.9**4 * 0.7**4,
]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Give two workers in this process: for what has nothing to do with processes."""
    with in_process(2) as cluster, Client(cluster) as connected:
        yield connected


def in_process(workers: int) -> LocalCluster:
    return LocalCluster(
        processes=False,
        n_workers=workers,
        threads_per_worker=1,
        host="127.0.0.1",
        protocol="tcp://",
        dashboard_address="127.0.0.1:0",
    )


def open_study(folder: Path, trainer: type = Walk, **config: object) -> Study:
    return dt.create_study(
        trainer,
        name="walk",
        storage=folder,
        metric="loss",
        config={"log": str(folder / "log"), **config},
        load_if_exists=True,
    )


def run(study: Study, client: Client, steps: int = STEPS, **options: Any) -> None:
    study.optimize(dt.algos.Grid(SPACE, max_steps=steps), client=client, progress=False, **options)


def trained(folder: Path) -> Counter[str]:
    """Return how often each state was trained, as the trainer itself counted."""
    return Counter((folder / "log").read_text().splitlines())


@contextmanager
def after_steps(folder: Path, steps: int, act: Callable[[], object]) -> Iterator[None]:
    """Do something in another thread once so many steps were trained."""

    def wait_and_act() -> None:
        wait_until(lambda: (folder / "log").exists() and trained(folder).total() >= steps)
        act()

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    yield
    thread.join()


@contextmanager
def while_held(folder: Path, act: Callable[[], object]) -> Iterator[None]:
    """Do something in another thread before the trials that are under way go on.

    Their config names the file that holds them: ``hold`` in the folder.
    """
    gate = Gate(folder / "hold")
    gate.close()

    def act_and_open() -> None:
        try:
            act()
        finally:
            gate.open()

    with after_steps(folder, HELD, act_and_open):
        yield


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def assert_all_is_well(study: Study) -> None:
    assert [trial.state.value for trial in study.trials] == ["COMPLETE"] * 3
    assert [trial.value for trial in study.trials] == pytest.approx(ALONE)
    assert [trial.steps for trial in study.trials] == [STEPS] * 3
    assert [sorted(trial.metrics) for trial in study.trials] == [list(range(1, STEPS + 1))] * 3


# ------------------------------------------------------------------------ user code


@pytest.mark.parametrize("kind", ["error", "exit", "ctrl-c", "unreadable"])
@pytest.mark.parametrize("where", ["setup", "train", "evaluate", "state_dict"])
def test_error_of_user_code_fails_trials_that_need_the_step(
    tmp_path: Path, client: Client, where: str, kind: str
) -> None:
    fault = {"where": where, "kind": kind, "lr": 0.2, "step": 4}
    study = open_study(tmp_path, fault=fault)
    run(study, client)
    good, bad, other = study.trials
    assert [good.state.value, bad.state.value, other.state.value] == [
        "COMPLETE",
        "FAIL",
        "COMPLETE",
    ]
    assert [good.value, other.value] == pytest.approx([ALONE[0], ALONE[2]])
    assert f"in {where}" in bad.error
    last = {
        "error": "ValueError: bad luck",
        "exit": "SystemExit: 3",
        "ctrl-c": "KeyboardInterrupt",
        "unreadable": "UnreadableError: <exception str() failed>",
    }
    assert bad.error.strip().endswith(last[kind])
    failed = [stage for stage in study.stages() if stage.status == "failed"]
    assert len(failed) == 2
    assert len({stage.worker for stage in failed}) == 2, "tried again on another worker"
    assert bad.metrics.keys() >= {1, 2, 3, 4}, "the shared steps are the trial's all the same"
    study.close()


def test_steps_before_failure_count_as_executed_and_repeated(
    tmp_path: Path, client: Client
) -> None:
    study = open_study(tmp_path, fault={"where": "train", "lr": 0.2, "step": 6, "kind": "error"})
    run(study, client)
    summary = study.summary()
    counts = trained(tmp_path)
    assert summary["steps_executed"] == counts.total()
    assert summary["steps_repeated"] == counts.total() - len(counts) == 2
    study.close()


def test_stage_that_fails_before_its_first_report_has_its_steps(
    tmp_path: Path, client: Client
) -> None:
    """The end of an attempt is recorded after the engine has handled it, with its last step."""
    study = dt.create_study(
        Walk,
        name="walk",
        storage=tmp_path,
        metric="loss",
        report_every=STEPS,
        config={
            "log": str(tmp_path / "log"),
            "fault": {"where": "train", "lr": 0.1, "step": 5, "kind": "error"},
        },
    )
    tuner = dt.algos.Grid(dt.Space(lr=[Constant(0.1)]), max_steps=STEPS)
    study.optimize(tuner, client=client, progress=False)
    rows = study.stages()
    assert {row.status for row in rows} == {"failed"}
    assert {row.start + row.steps for row in rows} == {5}
    assert study.summary()["steps_executed"] == trained(tmp_path).total()
    study.close()


def test_a_failure_in_build_fails_only_what_starts_there(tmp_path: Path, client: Client) -> None:
    study = open_study(tmp_path, fault={"where": "build", "lr": 0.2, "kind": "error"})
    space = dt.Space(lr=[*SHARED, 0.2])
    study.optimize(dt.algos.Grid(space, max_steps=STEPS), client=client, progress=False)
    assert [trial.state.value for trial in study.trials] == ["COMPLETE"] * 3 + ["FAIL"]
    assert "in build" in study.trials[3].error
    study.close()


def test_trials_whose_state_cannot_be_loaded_are_trained_alone(
    tmp_path: Path, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    study = open_study(tmp_path)
    run(study, client)
    study.close()
    again = open_study(tmp_path, fault={"where": "load_state_dict", "lr": 0.1, "kind": "error"})
    run(again, client, steps=STEPS + 2)
    assert "load_state_dict raised" in caplog.text
    assert {trial.state.value for trial in again.trials} == {"COMPLETE"}
    again.close()


def test_an_error_that_happens_once_is_forgiven(tmp_path: Path, client: Client) -> None:
    once = str(tmp_path / "once")
    fault = {"where": "train", "lr": 0.2, "step": 5, "kind": "error", "once": once}
    study = open_study(tmp_path, fault=fault)
    run(study, client)
    assert_all_is_well(study)
    study.close()


def test_a_failed_trial_stays_failed_with_its_traceback(tmp_path: Path, client: Client) -> None:
    fault = {"where": "train", "lr": 0.2, "step": 4, "kind": "error"}
    study = open_study(tmp_path, fault=fault)
    run(study, client)
    error, before = study.trials[1].error, trained(tmp_path)
    study.close()
    again = open_study(tmp_path, fault=fault)
    run(again, client)
    assert again.trials[1].error == error
    assert again.trials[1].state is dt.TrialState.FAIL
    assert trained(tmp_path) == before
    again.close()


def test_evaluate_raises_what_its_training_raised(tmp_path: Path, client: Client) -> None:
    study = open_study(tmp_path, fault={"where": "train", "lr": 0.2, "kind": "error"})
    with pytest.raises(TrainerError, match="bad luck") as caught:
        study.evaluate({"lr": 0.2}, steps=3, client=client)
    assert "in train" in caught.value.traceback
    assert study.evaluate({"lr": 0.1}, steps=3, client=client) == {"loss": pytest.approx(0.9**3)}
    study.close()


def test_state_not_storable_fails_its_trials_with_its_name(tmp_path: Path, client: Client) -> None:
    study = open_study(tmp_path, Unstorable)
    run(study, client)
    assert [trial.state.value for trial in study.trials] == ["FAIL"] * 3
    assert all("state['parts'][1]['hook']" in trial.error for trial in study.trials)
    study.close()


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_an_unbounded_metric_is_no_failure_and_never_best(
    tmp_path: Path, client: Client, direction: str
) -> None:
    study = dt.create_study(
        Immeasurable, name="nan", storage=tmp_path, metric="loss", direction=direction
    )
    run(study, client)
    assert [trial.state.value for trial in study.trials] == ["COMPLETE"] * 3
    assert study.trials[1].value != study.trials[1].value
    assert study.best_trial.number == 0
    study.close()
    again = dt.create_study(
        Immeasurable,
        name="nan",
        storage=tmp_path,
        metric="loss",
        direction=direction,
        load_if_exists=True,
    )
    assert again.trials[1].value != again.trials[1].value
    assert again.trials[2].value == float("-inf")
    again.close()


# --------------------------------------------------------------------- lost states


def spoil(folder: Path, how: str) -> None:
    """Delete, alter or cut short every checkpoint of a store."""
    for commit in list(folder.rglob("commit")):
        if how == "deleted":
            shutil.rmtree(commit.parent)
        elif how == "commit":
            commit.write_bytes(b"{}")
        else:
            content = bytearray(commit.read_bytes())  # the state lies behind its commit
            content[len(content) * 3 // 4] ^= 1
            commit.write_bytes(content if how == "altered" else content[:-3])


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("how", ["deleted", "altered", "cut", "commit"])
def test_a_state_that_is_lost_is_trained_again(
    tmp_path: Path, client: Client, how: str, reopened: bool
) -> None:
    study = open_study(tmp_path)
    run(study, client)
    spoil(tmp_path, how)
    if reopened:
        study.close()
        study = open_study(tmp_path)
    run(study, client, steps=STEPS + 2)
    longer = study.trials[3:]
    assert [trial.state.value for trial in longer] == ["COMPLETE"] * 3
    expected = [0.9**10, 0.9**4 * 0.8**6, 0.9**4 * 0.7**6]
    assert [trial.value for trial in longer] == pytest.approx(expected)
    for trial in longer:
        state, _ = study.store.load(study.plan.nodes_of(trial.number)[-1].key_at(10))
        assert state == {"x": trial.value, "done": 10}
    assert set(trained(tmp_path).values()) == {1, 2}
    study.close()


def test_a_state_that_two_stages_miss_is_trained_again_once(
    tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = open_study(tmp_path)
    run(study, client)
    trunk = study.plan.node_at(0, 4).key_at(4)
    missed, both, discard = Counter[str](), threading.Event(), CheckpointStore.discard

    def one_is_late(self: CheckpointStore, key: str, **options: Any) -> bool:
        missed[key] += 1
        if key == trunk and missed[key] == 1:
            assert both.wait(60)
        elif key == trunk and missed[key] == 2:
            both.set()
            wait_until(lambda: self.commit_of(key) is not None)
            wait_until(lambda: 4 in study.plan.node_at(0, 4).checkpoints)  # the driver knows
        return discard(self, key, **options)

    spoil(tmp_path, "deleted")
    monkeypatch.setattr(CheckpointStore, "discard", one_is_late)
    run(study, client, steps=STEPS + 2)
    assert missed[trunk] >= 2
    assert set(trained(tmp_path).values()) == {1, 2}
    assert trunk in study.database.checkpoint_keys()
    study.close()


# -------------------------------------------------------------------- lost processes

DRIVER = """
import sys

sys.path.insert(0, {here!r})
from pathlib import Path

from distributed import Client
from test_failures import in_process, open_study, run

folder = Path({folder!r})
fault = dict(where="train", lr=0.2, step=6, kind="die", once=str(folder / "once"), saved={folder!r})
with in_process(2) as cluster, Client(cluster) as client:
    study = open_study(folder, fault=fault)
    run(study, client)
"""


@pytest.mark.process
def test_the_same_command_goes_on_after_the_driver_died(tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER.format(here=str(Path(__file__).parent), folder=str(tmp_path)))
    command = [sys.executable, str(script)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    died = run_forked(command, env=environment)
    assert died.returncode == 7, died.stderr
    store = dt.CheckpointStore(str(tmp_path))
    durable = [store.load(key)[0] for key in list(store.keys())]
    assert durable
    run_forked(command, env=environment, check=True)
    counts = trained(tmp_path)
    assert len(counts) == UNIQUE
    for state in durable:
        assert counts[f"{state['done']} {state['x']!r}"] == 1
    study = open_study(tmp_path)
    assert_all_is_well(study)
    study.close()


@pytest.mark.cluster
def test_worker_killed_between_stages_repeats_no_step(tmp_path: Path) -> None:
    with local_client(2) as client:
        study = open_study(tmp_path)
        kill(next(iter(client.run(os.getpid).values())))
        run(study, client)
        assert_all_is_well(study)
        study.close()


@pytest.mark.cluster
def test_all_workers_may_be_killed_at_once(tmp_path: Path) -> None:
    study = open_study(tmp_path, hold=str(tmp_path / "hold"))
    with local_client(2) as client:
        workers = client.run(os.getpid)
        with while_held(tmp_path, lambda: [kill(pid) for pid in workers.values()]):
            run(study, client)
    assert_all_is_well(study)
    counts, summary = trained(tmp_path), study.summary()
    assert len(counts) == UNIQUE
    # Of the steps that were lost the driver has heard of some.
    assert UNIQUE <= summary["steps_executed"] <= counts.total()
    assert summary["steps_executed"] - summary["steps_repeated"] == UNIQUE
    assert {stage.worker for stage in study.stages() if stage.status == "lost"} <= set(workers)
    study.close()


@pytest.mark.cluster
def test_step_that_kills_workers_fails_only_its_trial(tmp_path: Path) -> None:
    study = open_study(tmp_path, fault={"where": "train", "lr": 0.2, "step": 4, "kind": "kill"})
    study.parts.memory.options = replace(study.parts.memory.options, losses_allowed=1)
    with local_client(2) as client:
        run(study, client)
    assert [trial.state.value for trial in study.trials] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert "its worker was lost 2 times in a row" in study.trials[1].error
    study.close()


# ------------------------------------------------------------------ workers come and go


def test_a_worker_that_joins_later_gets_work(tmp_path: Path) -> None:
    study = open_study(tmp_path, hold=str(tmp_path / "hold"))

    def scale() -> None:
        cluster.scale(2)
        wait_until(lambda: len(study._optimizer.runner._engine.view.slots) == 2)

    with (
        in_process(1) as cluster,
        Client(cluster) as client,
        while_held(tmp_path, scale),
    ):
        run(study, client)
    assert_all_is_well(study)
    assert len({stage.worker for stage in study.stages()}) == 2
    study.close()


def test_a_study_that_was_stopped_goes_on(tmp_path: Path, client: Client) -> None:
    study = open_study(tmp_path, hold=str(tmp_path / "hold"))

    def stop() -> None:
        study.stop()
        wait_until(stop_order(client.cluster.workers.values()))

    with while_held(tmp_path, stop):
        run(study, client)
    half = study.summary()
    assert 0 < half["steps_executed"] < UNIQUE
    assert half["steps_reused"] == 0
    assert {trial.state.value for trial in study.trials} == {"RUNNING"}
    run(study, client)
    assert_all_is_well(study)
    assert trained(tmp_path).total() == UNIQUE, "nothing is trained twice"
    assert study.stop() is False
    study.close()


def test_stages_run_only_where_their_needs_are_met(tmp_path: Path) -> None:
    study = dt.create_study(
        Walk, name="needs", storage=tmp_path, metric="loss", needs={"ACCELERATOR": 1}
    )
    with in_process(1) as cluster, Client(cluster) as client:
        with pytest.raises(ClusterError, match=r"has ACCELERATOR=1; workers: .*, \d+ core"):
            run(study, client)
        assert study.trials == []
        cluster.new_spec["options"]["resources"] = {"ACCELERATOR": 1}
        cluster.scale(3)
        client.wait_for_workers(3)
        run(study, client)
        infos = client.scheduler_info(n_workers=-1)["workers"]
    fitting = {address for address, info in infos.items() if info["resources"]}
    assert len(fitting) == 2
    assert {stage.worker for stage in study.stages()} == fitting
    assert_all_is_well(study)
    study.close()


def test_a_cluster_that_stays_deserted_ends_the_run(tmp_path: Path) -> None:
    timeouts = dt.Timeouts(workers_seconds=0.1)
    study = open_study(tmp_path, hold=str(tmp_path / "hold"))

    def desert() -> None:
        has_stop_order = stop_order(cluster.workers.values())
        cluster.scale(0)
        wait_until(has_stop_order)

    with (
        in_process(1) as cluster,
        Client(cluster) as client,
        while_held(tmp_path, desert),
        pytest.raises(ClusterError, match="must have a worker that can run stages"),
    ):
        run(study, client, timeouts=timeouts)
    with in_process(1) as cluster, Client(cluster) as client:
        run(study, client)
    assert_all_is_well(study)
    study.close()


def test_unknown_metric_ends_study_and_lists_known_ones(tmp_path: Path, client: Client) -> None:
    class Hidden(Walk):
        def evaluate(self) -> dict[str, float]:
            return super().evaluate()

    study = dt.create_study(
        Hidden, name="walk", storage=tmp_path, metric="los", direction="minimize"
    )
    with pytest.raises(ConfigurationError, match="unknown metric 'los'; known: loss"):
        run(study, client)
    assert [trial.state.value for trial in study.trials].count("FAIL") >= 2
    study.close()
