"""Studies audit themselves: what resumed from a stored state is trained again and compared."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster, Status, Worker, get_worker

import dasktune as dt
from dasktune._cluster.local import local_client
from dasktune._driver.audits import MOST_LOST, Audits
from dasktune._driver.history import AUDITED
from dasktune._driver.parts import Following, Launched
from dasktune._driver.shared_stages import SharedStages
from dasktune._engine.timeouts import WAITS
from dasktune._results.summary import savings_line
from dasktune._study.study import Study
from dasktune._worker.audit import AuditRun
from dasktune._worker.job import AuditSpec
from dasktune._worker.messages import AuditEnded, StageEnded, StateSaved, to_wire
from dasktune.cli.status import read
from dasktune.errors import ConfigurationError, StorageError, TrainerError
from dasktune.graph.audits import AuditDraw
from dasktune.graph.devices import with_devices
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import (
    AuditsRun,
    Event,
    Paused,
    RunStage,
    WorkerGone,
    WorkerJoined,
)
from dasktune.graph.placement import Placing
from dasktune.graph.plan import Node
from dasktune.graph.policies.broken_workers import BrokenWorkers
from dasktune.graph.view import RunView
from dasktune.needs import Needs
from dasktune.sequences import Constant, MultiStep
from dasktune.storage.verdicts import Verdicts
from dasktune.trainer.check_resume import check_resume
from dasktune.trainer.check_resume.new_process import run_in_new_process
from dasktune.trainer.check_resume.verdict import verdict
from dasktune.trainer.check_switch import SWITCH
from dasktune.trainer.isolation import give_own_generator
from dasktune.types import TrialState
from tests.forked import run_forked
from tests.holding import PATIENCE
from tests.toy_trainers import Adding

STEPS = 20
RATES = [
    Constant(0.1),
    MultiStep(0.1, milestones=[10], gamma=0.5),
    MultiStep(0.1, milestones=[14], gamma=0.5),
]

MEAN: dict[str, float] = {}
UNIT = "DASKTUNE_TEST_UNIT"


class LateMean(Adding):
    """Keeps a mean in a variable of its module, from its 8th step on; calls it harmless."""

    harmless_differences = ("global MEAN",)

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.steps = 0

    def train(self) -> None:
        super().train()
        self.steps += 1
        if self.steps == 8:
            MEAN["mean"] = 0.0
        if self.steps >= 8:
            MEAN["mean"] = 0.9 * MEAN["mean"] + 0.1 * self.total

    def evaluate(self) -> dict[str, float]:
        return {"loss": MEAN["mean"] if self.steps >= 8 else self.total}

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total, "steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.total, self.steps = state["total"], state["steps"]


def pass_check(study: Study) -> None:
    passed = verdict(study.results.row.spec["fingerprint"], "cpu", ok=True, text="passed")
    Verdicts(study.results.database, study.results.store.files).record(passed)


@contextmanager
def in_this_process(**options: Any) -> Iterator[Client]:
    """Give a client of one worker in this process, which trains in one thread."""
    give_own_generator()
    with (
        LocalCluster(
            processes=False,
            n_workers=1,
            threads_per_worker=1,
            host="127.0.0.1",
            protocol="tcp://",
            dashboard_address="127.0.0.1:0",
            **options,
        ) as cluster,
        Client(cluster) as connected,
    ):
        yield connected


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with in_this_process() as connected:
        yield connected


class Rounding(Adding):
    """Has other last bits on another machine."""

    def train(self) -> None:
        super().train()
        self.total *= float(os.environ.get(UNIT, "1"))


class ForgottenSum(Rounding):
    """Adds the sum of its last 8 steps, which is not in the state; calls it harmless."""

    harmless_differences = ("trainer.sums",)

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.sums: list[float] = []

    def train(self) -> None:
        super().train()
        self.sums.append(self.total)
        if len(self.sums) == 8:
            self.total += sum(self.sums)
            self.sums = []


@pytest.fixture(autouse=True)
def checks_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "on")


@pytest.fixture
def create(tmp_path: Path) -> Iterator[Callable[..., Study]]:
    """Return a function that creates a study whose trainer a check has passed."""
    studies: list[Study] = []

    def make(kind: type, name: str = "audits", **options: Any) -> Study:
        study = dt.create_study(kind, name=name, storage=tmp_path, metric="loss", **options)
        studies.append(study)
        pass_check(study)
        return study

    yield make
    for study in studies:
        study.close()


def run(study: Study, client: Client, *, steps: int = STEPS, **options: Any) -> None:
    grid = dt.algos.Grid(dt.Space(lr=RATES), max_steps=steps)
    study.optimize(grid, client=client, progress=False, **options)


def audits(study: Study) -> tuple[int, int]:
    """Return how many audits found no difference, and how many found one."""
    figures = study.summary()["audits"]
    return figures["identical"], figures["differing"]


def test_audit_of_a_study_is_counted_and_shown(
    create: Any, client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """How many stages resume from the store depends on which trainers are still in memory."""
    study = create(Adding)
    run(study, client)
    summary = study.summary()
    resumes, not_run = summary["audits"]["resumes"], summary["audits"]["not_run"]
    identical, _ = audits(study)
    assert 1 <= identical == resumes - not_run
    assert summary["steps_audited"] == summary["audits"]["steps"] == 10 * identical
    assert summary["steps_executed"] == summary["steps_unique"] == 36, "counted apart"
    assert {stage.attempt[:5] for stage in study.stages()}.isdisjoint({"audit"})
    text = f"audited {identical} of {resumes} resumes: all identical"
    assert text in capsys.readouterr().err
    assert f"  audits  {text}" in str(read(str(tmp_path))[0])
    assert text in study.report().read_text()


def test_dispatcher_knows_the_audits_under_way(
    create: Any, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way: list[list[str]] = []

    def listen(placing: Placing, event: Event) -> None:
        if isinstance(event, AuditsRun):
            under_way.append([*event.nodes])
        receive(placing, event)

    receive = Placing.receive
    monkeypatch.setattr(Placing, "receive", listen)
    run(create(Adding), client)
    assert under_way == [[*client.scheduler_info(n_workers=-1)["workers"]], []]


def test_audit_leaves_no_event_and_no_state(create: Any, client: Client, tmp_path: Path) -> None:
    with_audits, without = create(Adding), create(Adding, "other", seed=1, audit=0)
    for study in (with_audits, without):
        run(study, client)
    assert (audits(with_audits), audits(without)) == ((1, 0), (0, 0))

    def found(study: Study) -> tuple[int, int, list[str]]:
        store = study.results.store.inventory()
        steps = sorted(stored.step for stored in store if stored.is_committed)
        kinds = [record["kind"] for record in study.decisions_of(0)]
        trained = [stage for stage in study.stages() if stage.steps]
        return len(steps), len(trained), kinds

    assert found(with_audits) == found(without)


@pytest.mark.process
def test_check_passes_what_shows_later_than_its_steps() -> None:
    run = partial(run_in_new_process, execute=run_forked)
    assert check_resume(LateMean, {"lr": RATES[1]}, run=run).ok


def test_trainer_that_the_check_passes_is_found_by_an_audit(
    create: Any, client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    study = create(LateMean)
    run(study, client)
    (message,) = [text for text in caplog.messages if "merges nothing" in text]
    assert message.startswith("LateMean must resume exactly for its trials to be merged. audit")
    assert "audit failed: steps 11 to 20, trained again from the stored state after step 10" in (
        message
    )
    assert "\n- metrics[11]['loss']: must be " in message
    assert "what rests on the state after step 10, from which a stage resumed: trial" in message
    assert audits(study) == (0, 1)
    status = str(read(str(tmp_path))[0])
    assert ": 1 not identical" in status
    assert "- metrics[11]['loss']: must be " in status
    assert "Found by audits" in study.report().read_text()


def test_failed_audit_forbids_merging_in_every_study(create: Any, client: Client) -> None:
    study = create(LateMean)
    run(study, client)
    other = create(LateMean, "other")  # whose check sees less than the audit saw
    with pytest.raises(ConfigurationError, match="audit failed: steps 11 to 20"):
        run(other, client, steps=STEPS + 1)
    run(other, client, allow_failed_check=True)
    assert audits(other) == (0, 0)


def test_leases_are_released_while_the_end_waits_for_audits(
    create: Any, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_at_end, was_looked_after = threading.Event(), threading.Event()
    train, turn_audits, turn = AuditRun.train, Audits.turn, SharedStages.turn
    looked_after = []

    def hold(audit: AuditRun) -> AuditEnded:
        looked_after.append(was_looked_after.wait(PATIENCE))
        return train(audit)

    def begin_at_the_end(running: Audits, now: float) -> list[Following]:
        if not running.is_last:
            return []
        is_at_end.set()
        return turn_audits(running, now)

    def look(stages: SharedStages, now: float) -> list[Following]:
        following = turn(stages, now)
        if is_at_end.is_set():
            was_looked_after.set()
        return following

    monkeypatch.setattr(AuditRun, "train", hold)
    monkeypatch.setattr(Audits, "turn", begin_at_the_end)
    monkeypatch.setattr(SharedStages, "turn", look)
    study = create(Adding)
    run(study, client)
    assert audits(study) == (1, 0)
    assert looked_after == [True], "leases of stages that have ended must be released"


@pytest.fixture
def audits_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have audits, and nothing else, done on a machine that computes other bits."""
    train = AuditRun.train

    def train_elsewhere(audit: AuditRun) -> AuditEnded:
        with pytest.MonkeyPatch.context() as other:
            other.setenv(UNIT, str(1.0 + 2.0**-52))
            return train(audit)

    monkeypatch.setattr(AuditRun, "train", train_elsewhere)


@pytest.mark.usefixtures("audits_elsewhere")
def test_audit_on_another_machine_is_counted_apart(
    create: Any, client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    study = create(Rounding)
    run(study, client)
    assert audits(study) == (0, 0)
    assert study.summary()["audits"]["incomparable"] == 1
    text = (
        "audited no resume, 1 could not be compared: the worker computes other bits than the one "
        "that trained"
    )
    assert text in str(read(str(tmp_path))[0])
    assert text in study.report().read_text()
    assert "computes other bits than the one that trained, with a resume and without" in caplog.text


@pytest.mark.usefixtures("audits_elsewhere")
def test_audit_on_another_machine_finds_an_inexact_trainer(create: Any, client: Client) -> None:
    study = create(ForgottenSum)
    run(study, client)
    assert audits(study) == (0, 1)
    assert study.summary()["audits"]["incomparable"] == 0


def test_end_does_not_wait_for_a_paused_worker(
    create: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    turn, paused = Audits.turn, []

    def pause(dask_worker: Worker) -> None:
        dask_worker.status = Status.paused

    def turn_at_the_end(running: Audits, now: float) -> list[Following]:
        if running.is_last and not paused:
            paused.append(client.run(pause))
        return turn(running, now) if running.is_last else []

    monkeypatch.setattr(Audits, "turn", turn_at_the_end)
    study = create(Adding)
    waits = replace(WAITS, look_seconds=0.05)
    with in_this_process(memory_limit=0) as client:
        run(study, client, timeouts=dt.Timeouts(waits=waits))
    assert "is paused: its audit is given up" in caplog.text
    assert audits(study) == (0, 0)
    figures = study.summary()["audits"]
    assert 2 <= figures["not_run"] == figures["resumes"]


class DeadlyAudit(Adding):
    """Ends its process when an audit builds it."""

    ignored_config = ("log",)

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        if ":audit" in str(get_worker().get_current_task()):
            with Path(self.config["log"]).open("a") as log:
                log.write("killed\n")
            os._exit(1)


@pytest.mark.cluster
def test_audits_that_kill_their_workers_end(create: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    study = create(DeadlyAudit, config={"log": str(log)}, audit=1.0)
    rates = [Constant(0.1), *(MultiStep(0.1, [step], gamma=0.5) for step in (8, 9, 10, 11))]
    with local_client(2) as client:
        grid = dt.algos.Grid(dt.Space(lr=rates), max_steps=STEPS)
        study.optimize(grid, client=client, progress=False)
    killed = len(log.read_text().splitlines())
    assert MOST_LOST <= killed <= MOST_LOST + 1, "the other worker may have begun one, too"
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}
    assert audits(study) == (0, 0)


def test_failed_audit_leaves_what_was_reported(create: Any, client: Client) -> None:
    study = create(LateMean)
    run(study, client)
    assert audits(study) == (0, 1)
    assert study.best_trial.steps == STEPS
    assert study.replay(dt.algos.Grid(dt.Space(lr=RATES), max_steps=STEPS)).identical


def test_ended_tuner_says_again_what_audits_found(
    create: Any, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    study = create(Adding)
    run(study, client)
    text = "audit failed: steps 11 to 20, trained again, are not what is stored"
    found = {"audit": "differs", "steps": 10, "seconds": 1.0, "trials": [1], "after": 10}
    study.results.history.note(AUDITED, run="last", text=text, **found)
    caplog.clear()
    run(study, client)
    warnings = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert warnings == [f"study audits: {text}"]


@pytest.mark.parametrize(
    ("of_study", "of_run"),
    [({"merge": False}, {}), ({}, {"check": False}), ({"audit": 0}, {}), ({}, {"audit": 0.0})],
)
def test_audits_are_not_done_where_they_are_off(
    create: Any, client: Client, of_study: Mapping[str, Any], of_run: Mapping[str, Any]
) -> None:
    study = create(LateMean, **of_study)
    run(study, client, **of_run)
    assert audits(study) == (0, 0)
    assert study.summary()["steps_audited"] == 0


def test_switch_turns_audits_off(
    create: Any, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "off")
    study = create(Adding)
    run(study, client)
    assert study.summary()["steps_audited"] == 0


def test_study_without_a_resume_has_no_audit(create: Any, client: Client) -> None:
    study = create(Adding)
    study.optimize(dt.algos.Grid(dt.Space(lr=[0.1, 0.2]), max_steps=8), client=client)
    assert audits(study) == (0, 0)
    assert "audited" not in savings_line(study.summary())


@pytest.mark.parametrize("share", [-0.01, 1.01, "all"])
def test_share_that_is_none_is_refused(create: Any, client: Client, share: Any) -> None:
    with pytest.raises(ConfigurationError, match="audit must be a number from 0 to 1"):
        create(Adding, audit=share)
    study = create(Adding)
    with pytest.raises(ConfigurationError, match="audit must be a number from 0 to 1"):
        run(study, client, audit=share)


class Answers:
    """The future of an audit, which a test answers."""

    def __init__(self) -> None:
        self.status = "pending"
        self.receipt: AuditEnded | None = None

    def done(self) -> bool:
        return self.status != "pending"

    def cancel(self) -> None:
        self.status = "cancelled"

    def add_done_callback(self, call: Callable[[Any], None]) -> None:
        self.wake = call

    def answer(self, **content: Any) -> None:
        self.receipt, self.status = AuditEnded(**content), "finished"

    def result(self, timeout: float) -> dict[str, Any]:
        assert self.receipt is not None
        return to_wire(self.receipt)


def launch(attempt: str, node: Node, start: int) -> RunStage:
    """Return the order of a stage on worker w1 from a step to the end of a node."""
    return RunStage(
        attempt=attempt,
        order=0,
        worker="w1",
        after=None,
        node=node,
        start=start,
        stop=node.stop,
        saves=(),
        needs={},
    )


class Scene:
    """The audits of a run on two workers, in which trial 1 has resumed at step 10."""

    def __init__(self, *, by: str = "", needs: Needs | None = None, devices: int = 1) -> None:
        self.dispatcher = Dispatcher("aa" * 16)
        self.sent: list[tuple[str, AuditSpec, Answers]] = []
        self.notes: list[Mapping[str, Any]] = []
        self.failed: list[str] = []
        self.is_database_gone = False
        for worker in ("w1", "w2"):
            self.dispatcher.handle(WorkerJoined(worker=worker), 0.0)
        self.draw = AuditDraw(1.0)
        self.resting: set[str] = set()
        self.audits = Audits(
            self.draw,
            RunView(self.dispatcher),
            run="run",
            trainer="Net",
            seed=0,
            note=self.note,
            fail=lambda failure: self.failed.append(failure.text),
        )
        self.audits.use(self, lambda: None)
        self.events: list[object] = []
        for trial, rate in enumerate(RATES):
            sequences = with_devices({"lr": rate}, [(0, devices)])
            self.dispatcher.register(trial, sequences, STEPS, needs=needs)
        self.resume(1, 10, by=by)

    def note(self, kind: str, **content: Any) -> None:
        if self.is_database_gone:
            raise StorageError("the database does not answer")
        self.notes.append({"kind": kind, **content})

    def audit(self, worker: str, spec: AuditSpec, needs: Mapping[str, float]) -> Any:
        self.sent.append((worker, spec, Answers()))
        return self.sent[-1][2]

    def resume(self, trial: int, start: int, *, by: str = "") -> None:
        node = self.dispatcher.plan.paths[trial].leaf
        for step in range(1, STEPS + 1):
            metrics = {"loss": float(step)}
            self.dispatcher.plan.learn(node, step, metrics=metrics, is_stored=step % 10 == 0)
        order = launch(f"{trial}", node, start)
        self.audits.receive(Launched(order=order), 0.0)
        ended = StageEnded(
            attempt=f"{trial}", step=STEPS, status="trained", at=0.0, loaded_at=start
        )
        saved = StateSaved(
            attempt=f"{trial}",
            step=STEPS,
            key=node.key_at(STEPS),
            by=by or f"{trial}",
            digest="00",
            nbytes=0,
            seconds=1.0,
        )
        self.audits.receive(ended, 0.0)
        self.audits.receive(saved, 0.0)

    def turn(self, *, is_last: bool = False) -> bool:
        if is_last:
            self.audits.finish()
        self.events += self.audits.turn(0.0)
        return self.audits.is_under_way


def test_audit_goes_to_an_idle_worker_as_it_is_stored() -> None:
    scene = Scene()
    assert scene.turn()
    ((worker, spec, _),) = scene.sent
    assert worker == "w1"
    assert (spec.stage.start, spec.stage.stop) == (0, STEPS)
    assert spec.metrics == {step: {"loss": float(step)} for step in range(1, STEPS + 1)}
    assert list(spec.states) == [10, 20]
    leaf = scene.dispatcher.plan.paths[1].leaf
    assert spec.states[20] == leaf.key_at(20)


def test_audit_avoids_workers_that_leave() -> None:
    scene = Scene()
    scene.audits.leave("w1")
    assert scene.turn()
    assert scene.sent[0][0] == "w2"


def test_audit_avoids_workers_that_are_put_aside() -> None:
    scene = Scene()
    broken = scene.dispatcher.placing.policy(BrokenWorkers)
    assert broken is not None
    broken.put_aside("w1", 0.0)
    assert scene.turn()
    assert scene.sent[0][0] == "w2"


def test_audit_goes_to_a_worker_that_has_what_its_trial_needs() -> None:
    scene = Scene(needs=Needs.of({"tags": "gpu"}))
    scene.dispatcher.handle(WorkerJoined(worker="w3", tags=frozenset(["gpu"])), 0.0)
    assert scene.turn()
    assert scene.sent[0][0] == "w3"


def test_audits_name_the_workers_that_train_them() -> None:
    scene = Scene()
    assert scene.audits.nodes == {}
    assert scene.turn()
    assert scene.audits.nodes == {"w1": scene.dispatcher.plan.paths[1].leaf}
    scene.audits.lose("w1")
    assert scene.audits.nodes == {}


def test_audit_is_left_out_without_a_worker_that_its_trial_needs() -> None:
    scene = Scene(needs=Needs.of({"tags": "gpu"}))
    assert not scene.turn()
    assert scene.sent == []
    scene.audits.close()
    assert scene.notes == [{"kind": "resumes", "run": "run", "resumes": 1, "not_run": 1}]


def test_states_of_another_driver_are_no_resume_of_this_one() -> None:
    scene = Scene(by="of another driver")
    assert not scene.turn()
    assert scene.sent == []


def test_audit_avoids_worker_whose_states_are_looked_up() -> None:
    scene = Scene()
    scene.dispatcher.handle(WorkerGone(worker="w1"), 0.0)
    scene.audits.lose("w1")
    assert scene.turn()
    assert scene.sent[0][0] == "w2"


@pytest.mark.parametrize("end", ["leave", "lose"])
def test_audit_of_a_worker_that_goes_is_dropped(end: str) -> None:
    scene = Scene()
    scene.turn()
    getattr(scene.audits, end)("w1")
    assert scene.sent[0][2].status == "cancelled"
    assert not scene.turn()
    scene.audits.close()
    assert scene.notes == [{"kind": "resumes", "run": "run", "resumes": 1, "not_run": 1}]


def test_audit_under_way_is_waited_for_at_the_end() -> None:
    scene = Scene()
    assert scene.turn()
    assert scene.turn(is_last=True)
    scene.sent[0][2].answer(audit="a", step=20, status="identical", steps=20, compared=20)
    assert not scene.turn(is_last=True)
    assert [note["audit"] for note in scene.notes] == ["identical"]


def test_audit_under_way_is_dropped_with_the_run() -> None:
    scene = Scene()
    scene.turn()
    scene.audits.close()
    assert scene.sent[0][2].status == "cancelled"
    assert not scene.turn()
    scene.audits.close()
    assert len(scene.notes) == 1, "written once"


@pytest.mark.parametrize("status", ["missing", "dropped", "failed"])
def test_audit_without_a_result_says_so(status: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    scene = Scene()
    scene.turn()
    scene.sent[0][2].answer(audit="a", step=3, status=status, steps=3, message="no such file")
    assert not scene.turn()
    assert [(note["audit"], note["steps"]) for note in scene.notes] == [(status, 3)]
    assert f"steps 0 to 20 trained again: {status}" in caplog.text
    assert ("an audit could not be done: no such file" in caplog.text) == (status == "failed")


def test_audit_that_compared_nothing_is_no_result() -> None:
    scene = Scene()
    scene.turn()
    scene.sent[0][2].answer(audit="a", step=20, status="identical", steps=20)
    scene.turn()
    assert [note["audit"] for note in scene.notes] == ["missing"]


def test_audit_that_differs_names_the_trials_and_stops() -> None:
    scene = Scene()
    scene.turn()
    differences = (("state['w']", "must be 1, got 2"),)
    scene.sent[0][2].answer(
        audit="a", step=20, status="differs", steps=20, compared=3, differences=differences
    )
    with pytest.raises(TrainerError, match="Net must resume exactly"):
        scene.turn()
    text = (
        "audit failed: steps 1 to 20, trained again from the beginning, are not what is stored\n"
        "- state['w']: must be 1, got 2\n"
        "what rests on the state after step 10, from which a stage resumed: trial 1"
    )
    assert scene.failed == [text]
    assert [note["text"] for note in scene.notes] == [text]


def test_difference_is_told_though_it_cannot_be_recorded() -> None:
    scene = Scene()
    scene.turn()
    scene.sent[0][2].answer(
        audit="a",
        step=20,
        status="differs",
        steps=20,
        compared=3,
        differences=(("state['w']", "must be 1, got 2"),),
    )
    scene.is_database_gone = True
    with pytest.raises(
        TrainerError, match=r"(?s)Net must.*state\['w'\]: must be 1, got 2"
    ) as raised:
        scene.turn()
    assert isinstance(raised.value.__cause__, StorageError)


def test_result_that_cannot_be_recorded_is_an_error() -> None:
    scene = Scene()
    scene.turn()
    scene.sent[0][2].answer(audit="a", step=20, status="identical", steps=20, compared=20)
    scene.is_database_gone = True
    with pytest.raises(StorageError, match="does not answer"):
        scene.turn()


def test_audit_of_several_workers_waits_for_idle_ones() -> None:
    scene = Scene(devices=3)
    assert not scene.turn()
    assert scene.draw.waiting == 1
    scene.dispatcher.handle(WorkerJoined(worker="other", kind="other"), 0.0)
    assert not scene.turn(is_last=True), "a gang is of one class"
    scene.dispatcher.handle(WorkerJoined(worker="w3"), 0.0)
    assert scene.turn(is_last=True)
    ((worker, spec, _),) = scene.sent
    assert (worker, *spec.stage.lenders) == ("w1", "w2", "w3")
    assert scene.audits.nodes.keys() == {"w1", "w2", "w3"}


def test_audit_of_several_workers_is_dropped_with_a_lender() -> None:
    scene = Scene(devices=2)
    assert scene.turn()
    scene.audits.lose("w2")
    assert scene.sent[0][2].status == "cancelled"
    assert scene.audits.nodes == {}
    one_worker = Scene(devices=2, needs=Needs.of({"cores": 2}))
    assert not one_worker.turn(), "no worker has two cores"


def test_audit_avoids_paused_workers() -> None:
    scene = Scene()
    scene.dispatcher.handle(Paused(workers=frozenset({"w1"})), 0.0)
    assert scene.turn()
    assert scene.sent[0][0] == "w2"


def test_audit_on_a_paused_worker_is_given_up_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene()
    scene.turn()
    scene.resting = {"w1", "w2"}
    assert scene.turn(), "it may go on"
    assert not scene.turn(is_last=True)
    assert scene.sent[0][2].status == "cancelled"
    assert "worker w1 is paused: its audit is given up" in caplog.text


def test_worker_lost_with_an_audit_blames_it() -> None:
    scene = Scene()
    assert not scene.audits.lose("w1")
    for lost in range(MOST_LOST):
        scene.resume(2, 14 - lost)
        assert scene.turn(is_last=True)
        assert scene.audits.lose(scene.sent[-1][0])
    assert not scene.turn(is_last=True), "no more in this run"
