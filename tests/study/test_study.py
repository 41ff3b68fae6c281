"""Studies: what is refused, what is kept, and what their attributes mean."""

from __future__ import annotations

import copy
import itertools
import math
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from distributed import Client, LocalCluster, Scheduler
from distributed.deploy.spec import SpecCluster

import dasktune as dt
from dasktune._study.create import open_study, opening_with
from dasktune._study.study import Study
from dasktune.errors import ClusterError, ConfigurationError, StorageError, TrainerError
from dasktune.sequences import Constant, Exponential, MultiStep, Piecewise, Warmup
from dasktune.storage.database.database import Batch, Database
from dasktune.storage.database.rows import EventRow, StudyRow
from dasktune.trainer.check_resume.new_process import run_in_new_process
from dasktune.trainer.check_resume.verdict import RULE
from dasktune.trainer.check_switch import SWITCH
from tests.forked import run_forked
from tests.storage.full_disk import FullDisk

FORKED = partial(run_in_new_process, execute=run_forked)

STEPS = 6


class Descent(dt.Trainer):
    """Goes down a parabola, and writes down every step that it trains."""

    ignored_config = ("log",)

    def build(self, hp: Mapping[str, Any]) -> None:
        self.x, self.done = 1.0, 0

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp.get("lr", getattr(self, "lr", 0.0))

    def train(self) -> None:
        self.x -= self.lr * self.x
        self.done += 1
        if "log" in self.config:
            with open(self.config["log"], "a") as file:
                file.write(f"{self.done} {self.x!r}\n")

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.x * self.x, "height": -self.x}

    def state_dict(self) -> dict[str, Any]:
        return {"x": self.x, "done": self.done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.x, self.done = state["x"], state["done"]


class Forgetful(dt.Trainer):
    """Has everything but `state_dict`."""

    build = setup = train = evaluate = load_state_dict = Descent.train


class Sheltered(Descent):
    requires_process = True


class Restarting(Descent):
    """Counts from 0 where it resumes."""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.count = itertools.count()

    def train(self) -> None:
        super().train()
        next(self.count)


class Other(Descent):
    version = "2"


class Refusing(Descent):
    def train(self) -> None:
        super().train()
        if self.done > 3 and self.lr == 0.2:
            raise ValueError("0.2 is too high")


SPACE = dt.Space(lr=[0.1, Piecewise([0.1, 0.2], boundaries=[2]), MultiStep(0.1, [4], 0.1)])
UNIQUE = 6 + 4 + 2


def in_process(workers: int = 2) -> LocalCluster:
    return LocalCluster(
        processes=False,
        n_workers=workers,
        threads_per_worker=1,
        host="127.0.0.1",
        protocol="tcp://",
        dashboard_address="127.0.0.1:0",
    )


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with in_process() as cluster, Client(cluster) as connected:
        yield connected


def make(folder: Path, trainer: type = Descent, **options: Any) -> Study:
    named = {"name": "descent", "metric": "loss", "storage": folder, **options}
    return dt.create_study(trainer, config={"log": str(folder / "log")}, **named)


def run(study: Study, client: Client, steps: int = STEPS, space: dt.Space = SPACE) -> None:
    study.optimize(dt.algos.Grid(space, max_steps=steps), client=client, progress=False)


def steps_counted(folder: Path) -> int:
    log = folder / "log"
    return len(log.read_text().splitlines()) if log.exists() else 0


# ---------------------------------------------------------------------- bad arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "los"}, "unknown metric 'los'; known: height, loss"),
        ({"metric": ""}, "metric must be the name of a metric, got ''"),
        ({"metric": None}, "metric must be the name of a metric, got None"),
        ({"trainer": Forgetful}, "Forgetful must define state_dict()"),
        ({"trainer": Descent()}, "the trainer must be a class or a function, got "),
        ({"name": ""}, "name must be a string that is not empty, got ''"),
        ({"name": 5}, "name must be a string that is not empty, got 5"),
        (
            {"name": "a\x00b"},
            "name must have no control characters and no surrogates, got 'a\\x00b'",
        ),
        ({"name": "a\nb"}, "name must have no control characters and no surrogates, got 'a\\nb'"),
        (
            {"name": "\ud800"},
            "name must have no control characters and no surrogates, got '\\ud800'",
        ),
        ({"storage": ""}, "storage must be a folder or a URL, got ''"),
        ({"storage": 3}, "storage must be a folder or a URL, got 3"),
        ({"database": b"x"}, "database must be a file or a URL, got b'x'"),
        ({"report_every": 0}, "report_every must be an int >= 1, got 0"),
        ({"checkpoint_every": 0}, "checkpoint_every must be an int >= 1, got 0"),
        ({"seed": 1.5}, "seed must be an int, got 1.5"),
        ({"direction": "up"}, "direction must be 'maximize' or 'minimize', got 'up'"),
        ({"merge": "no"}, "merge must be True or False, got 'no'"),
        ({"config": 3}, "config must be a mapping, got 3"),
        ({"config": {"x": print}}, "config['x'] must be a JSON value, got "),
        ({"needs": ["GPU"]}, "needs must be finite numbers > 0 by name, got 'GPU'"),
        ({"needs": {"GPU": 0}}, "needs must be finite numbers > 0 by name, got {'GPU': 0}"),
        ({"reuse": "all"}, "unknown reuse 'all'; known: code, exact"),
    ],
)
def test_create_study_invalid_argument_leaves_nothing(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    given = {
        "trainer": Descent,
        "name": "wrong",
        "metric": "loss",
        "storage": tmp_path / "store",
        **options,
    }
    with pytest.raises(ConfigurationError) as caught:
        dt.create_study(**given)
    assert str(caught.value).startswith(message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../../up", "a/b", "..", "ä ö/", "/root", "x" * 300])
def test_create_study_any_name_has_its_own_folder_below_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    study = dt.create_study(Descent, name=name, metric="loss")
    assert study.name == name
    study.close()
    (database,) = tmp_path.rglob("dasktune.db")
    assert database.parent.parent == tmp_path / "here" / "runs"


def test_store_below_home_is_the_same_for_driver_and_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    study = dt.create_study(Descent, name="home", storage="~/runs", metric="loss")
    with closing(study):
        assert study.plan_of_run("run").store == str(tmp_path / "runs")
        assert (tmp_path / "runs" / "dasktune.json").is_file()


def test_create_study_several_problems_are_raised_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make(tmp_path, Forgetful, name=" ", report_every=0, seed="a", reuse="b", direction="c")
    assert len(caught.value.problems) == 6


@pytest.mark.parametrize(
    ("domains", "message"),
    [
        ({}, "at least one hyper-parameter, got none"),
        ({"lr": []}, "lr: .*at least one option, got none"),
        ({f"p{n}": list(range(10)) for n in range(7)}, "at most 1,000,000 points, got 10,000,000"),
        ({"lr": [Warmup(3, 0.1)]}, r"lr: Warmup\(3, 0.1\) ends at step 3, max_steps is 6"),
    ],
)
def test_grid_and_preview_refuse_untrainable_space(
    domains: dict[str, list[object]], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        dt.algos.Grid(dt.Space(**domains), max_steps=STEPS)
    with pytest.raises(ConfigurationError, match=message):
        dt.preview(dt.Space(**domains), max_steps=STEPS)


def test_create_study_same_name_other_arguments_is_refused(tmp_path: Path) -> None:
    make(tmp_path).close()
    with pytest.raises(ConfigurationError, match="exists already; open it with load_if_exists"):
        make(tmp_path)
    with pytest.raises(ConfigurationError) as caught:
        make(
            tmp_path,
            Other,
            metric="height",
            direction="maximize",
            seed=1,
            merge=False,
            load_if_exists=True,
        )
    code, metric, direction, seed, merge = caught.value.problems
    assert "with the trainer Descent (code, config and data: " in code
    assert "got the trainer Other (code, config and data: " in code
    assert metric.startswith("study 'descent' was created with metric 'loss', got metric 'height'")
    assert "direction 'minimize', got direction 'maximize'" in direction
    assert "seed 0, got seed 1" in seed
    assert "merge True, got merge False" in merge
    make(tmp_path, load_if_exists=True).close()


def test_create_study_unwritable_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"cannot write to .*/file: "):
        make(tmp_path, storage=tmp_path / "file")
    with pytest.raises(
        StorageError, match="cannot open nosuch://place: unknown protocol 'nosuch'; known: "
    ):
        make(tmp_path, storage="nosuch://place")
    (tmp_path / "file").unlink()
    make(tmp_path, storage=tmp_path / "file").close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tuner": 3}, "tuner must be one of dasktune.algos, got 3"),
        ({"client": "tcp://x"}, "client must be a dask.distributed.Client, got 'tcp://x'"),
        ({"workers": 0}, "workers must be a number >= 1"),
    ],
)
def test_optimize_invalid_argument_is_refused(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    study = make(tmp_path)
    given = {"tuner": dt.algos.Grid(SPACE, max_steps=STEPS), **arguments}
    with pytest.raises(ConfigurationError, match=message):
        study.optimize(**given, progress=False)
    assert study.trials == []
    study.close()


def test_evaluate_untrainable_configuration_is_refused(tmp_path: Path, client: Client) -> None:
    study = make(tmp_path)
    with pytest.raises(ConfigurationError, match="steps must be >= 1, got 0"):
        study.evaluate({"lr": 0.1}, steps=0, client=client)
    with pytest.raises(ConfigurationError, match="ends at step 3, max_steps is 6"):
        study.evaluate({"lr": Warmup(3, 0.1)}, steps=6, client=client)
    with pytest.raises(ConfigurationError, match="must be an int, float, bool, str or None"):
        study.evaluate({"lr": print}, steps=6, client=client)
    assert study.trials == []
    study.close()


# ----------------------------------------------------------------------- bad clusters


def test_in_process_workers_are_refused_if_process_needed(tmp_path: Path, client: Client) -> None:
    study = make(tmp_path, Sheltered)
    with pytest.raises(ClusterError, match=r"^workers? .* each worker must be a process of its"):
        run(study, client)
    assert study.trials == []
    study.close()


@pytest.mark.process
@pytest.mark.cluster
def test_memory_store_with_worker_processes_is_refused(tmp_path: Path) -> None:
    study = make(tmp_path, storage="memory://elsewhere")
    with dask_worker(tmp_path) as client:
        with pytest.raises(ClusterError, match="a memory:// store is seen by one process only"):
            run(study, client)
        assert plugins_of(client) == ["shuffle"]
    assert study.trials == []
    study.close()


def plugins_of(client: Client) -> list[str]:
    """Return the worker plugins that a scheduler hands to new workers; one is Dask's own."""
    return list(client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.worker_plugins)))


@contextmanager
def dask_worker(path: Path) -> Iterator[Client]:
    """Give the client of a cluster with one real worker process that was started in a folder."""
    options = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    with (
        SpecCluster(scheduler={"cls": Scheduler, "options": options}, workers={}) as cluster,
        Client(cluster) as client,
    ):
        worker = subprocess.Popen(
            [
                *(sys.executable, "-m", "distributed.cli.dask_worker"),
                *(cluster.scheduler_address, "--nworkers", "1", "--nthreads", "1"),
                *("--no-nanny", "--host", "127.0.0.1", "--no-dashboard"),
            ],
            cwd=path,  # comes first on the path of `python -m`
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            client.wait_for_workers(1, timeout=60)
            yield client
        finally:
            worker.terminate()
            worker.wait(30)


@pytest.mark.process
@pytest.mark.cluster
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("__version__ = '9.9'", r"must have dasktune \d+\.\d+, got 9\.9 on tcp://"),
        ("raise ImportError", r"must have dasktune \d+\.\d+, got none on tcp://"),
    ],
)
def test_workers_of_another_version_are_refused(tmp_path: Path, source: str, message: str) -> None:
    package = tmp_path / "other" / "dasktune"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(source)
    study = make(tmp_path)
    with dask_worker(tmp_path / "other") as client:
        with pytest.raises(ClusterError, match=message):
            run(study, client)
        assert plugins_of(client) == ["shuffle"]
    assert study.trials == []
    assert steps_counted(tmp_path) == 0
    study.close()


def test_optimize_closed_client_is_refused(tmp_path: Path) -> None:
    with in_process(1) as cluster, Client(cluster) as gone:
        pass
    study = make(tmp_path)
    with pytest.raises(ClusterError, match="the client must be connected, it is closed"):
        run(study, gone)
    study.close()


# -------------------------------------------------------------------- what a study says


def test_study_after_run_has_trials_and_summary(tmp_path: Path, client: Client) -> None:
    study = make(tmp_path)
    run(study, client)
    trials = study.trials
    assert [trial.number for trial in trials] == [0, 1, 2]
    assert {trial.state for trial in trials} == {dt.TrialState.COMPLETE}
    assert trials[0].params == {"lr": 0.1}
    assert trials[1].sequences == {"lr": Piecewise([0.1, 0.2], boundaries=[2])}
    assert trials[0].metrics.keys() == set(range(1, STEPS + 1))
    assert trials[0].value == trials[0].metrics[STEPS]["loss"] == pytest.approx(0.9**12)
    assert trials[0].values == [trials[0].value]
    assert study.best_trial.number == 1
    assert study.best_trials[0].number == 1
    assert study.best_value == trials[1].value == pytest.approx(0.9**4 * 0.8**8)
    assert study.best_params == trials[1].params
    assert trials[0].error is None
    frame = study.trials_dataframe()
    assert list(frame.columns) == ["number", "state", "steps", "value", "lr"]
    assert frame["state"].tolist() == ["COMPLETE"] * 3
    assert frame["steps"].tolist() == [STEPS] * 3
    summary = study.summary()
    assert summary["trials"] == 3
    assert summary["steps_requested"] == 3 * STEPS
    assert summary["steps_unique"] == UNIQUE
    assert summary["steps_executed"] == UNIQUE == steps_counted(tmp_path)
    assert summary["steps_repeated"] == summary["steps_reused"] == 0
    assert summary["merge_rate"] == 3 * STEPS / UNIQUE
    assert summary["best_value"] == study.best_value
    assert summary["worker_seconds"] > 0
    assert summary["wall_seconds"] > 0
    study.close()


DRAWN = dt.Space(lr=dt.Float(0.05, 0.5))
KINDS: Mapping[str, tuple[type, list[dt.algos.Tuner]]] = {
    "merged": (Descent, [dt.algos.Grid(SPACE, max_steps=STEPS)]),
    "failed": (Refusing, [dt.algos.Grid(SPACE, max_steps=STEPS)]),
    "paused": (Descent, [dt.algos.ASHA(DRAWN, trials=6, max_steps=STEPS, eta=2)]),
    "stopped": (Descent, [dt.algos.Hyperband(DRAWN, trials=6, max_steps=STEPS, eta=2)]),
    "goes on": (Descent, [dt.algos.Grid(SPACE, max_steps=steps) for steps in (4, STEPS)]),
    "found": (Descent, [dt.algos.Grid(SPACE, max_steps=STEPS)]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_opened_study_is_as_the_engine_has_it(kind: str, tmp_path: Path, client: Client) -> None:
    trainer, tuners = KINDS[kind]
    if kind == "found":
        with closing(make(tmp_path, trainer, name="before")) as before:
            run(before, client)
    study = make(tmp_path, trainer)
    for tuner in tuners:
        study.optimize(tuner, client=client, progress=False, check=False)
    expected = study.summary(), study.trials
    assert (expected[0]["steps_reused"] > 0) == (kind == "found")
    study.close()
    again = make(tmp_path, trainer, load_if_exists=True)
    plan = again.parts.memory.counted_plan()
    assert (again.summary(), again.parts.memory.has_plan) == (expected[0], False), (
        "no state was read"
    )
    assert again.parts.memory.counted_plan() is plan, "trials stand as before"
    assert again.trials == expected[1]
    assert again.summary() == expected[0]
    again.close()


def test_study_without_trials_has_no_best_trial(tmp_path: Path) -> None:
    study = make(tmp_path)
    assert study.best_trials == []
    with pytest.raises(ConfigurationError, match="no trial with a finite value yet"):
        _ = study.best_trial
    assert study.summary()["best_value"] is None
    assert study.trials_dataframe().empty
    assert study.stop() is False
    study.close()


class NotesReads(Database):
    """Notes which of its tables are read."""

    reads: ClassVar[list[str]] = []

    def __getattribute__(self, name: str) -> Any:
        if name in ("events", "trials", "metrics", "known_metrics", "stages", "checkpoints"):
            NotesReads.reads.append(name)
        return super().__getattribute__(name)


def test_open_study_reads_neither_event_log_nor_trials(tmp_path: Path, client: Client) -> None:
    study = make(tmp_path)
    run(study, client)
    expected = study.best_value, study.best_params, repr(study)
    study.close()
    with opening_with(partial(open_study, open_database=NotesReads)):
        again = make(tmp_path, load_if_exists=True)
    NotesReads.reads.clear()
    assert (again.best_value, again.best_params, repr(again)) == expected
    assert again.best_trial.value == expected[0]
    assert NotesReads.reads == []
    assert again.plan.paths.keys() == {0, 1, 2}
    assert {"trials", "known_metrics"} <= set(NotesReads.reads)
    again.close()


def test_best_trial_depends_on_direction(tmp_path: Path, client: Client) -> None:
    found = {}
    for direction in ("minimize", "maximize"):
        study = make(tmp_path, name=direction, metric="height", direction=direction)
        run(study, client)
        found[direction] = study.best_trial.number
        study.close()
    # Height is -x: the trial that has come furthest down its parabola is the highest.
    assert found == {"minimize": 2, "maximize": 1}
    assert steps_counted(tmp_path) == UNIQUE, "states do not depend on what is optimised"


def test_optimize_known_tuner_returns_at_once_new_tuner_adds(
    tmp_path: Path, client: Client
) -> None:
    study = make(tmp_path)
    run(study, client)
    study.close()
    again = make(tmp_path, load_if_exists=True)
    assert again.summary()["trials"] == 3
    again.optimize(dt.algos.Grid(SPACE, max_steps=STEPS), progress=False)  # starts no cluster
    assert steps_counted(tmp_path) == UNIQUE
    assert len(again.trials) == 3
    run(again, client, steps=STEPS + 2)
    assert len(again.trials) == 6
    assert steps_counted(tmp_path) == UNIQUE + 3 * 2, "it went on from where the others ended"
    again.optimize(
        dt.algos.Random(dt.Space(lr=[0.1, 0.5]), trials=2, max_steps=3, seed=1),
        client=client,
        progress=False,
    )
    assert len(again.trials) == 8
    assert [trial.steps for trial in again.trials] == [6, 6, 6, 8, 8, 8, 3, 3]
    again.parts.memory.look_again(-1.0)
    with closing(make(tmp_path, load_if_exists=True)) as opened:
        assert again.summary() == opened.summary()
    again.close()


def test_optimize_leaves_the_tuner_unchanged(tmp_path: Path, client: Client) -> None:
    tuner = dt.algos.Grid(SPACE, max_steps=STEPS)
    before = copy.deepcopy(vars(tuner))
    for name in ("first", "second"):
        study = make(tmp_path, name=name)
        study.optimize(tuner, client=client, progress=False)
        assert [trial.steps for trial in study.trials] == [STEPS] * 3
        study.close()
    assert vars(tuner) == before
    assert steps_counted(tmp_path) == UNIQUE


class Nested(dt.algos.Grid):
    """Runs its own study once more while it decides."""

    def __deepcopy__(self, memo: dict[int, object]) -> Nested:
        return self

    def tell(self, report: dt.types.Report) -> list[dt.types.Decision]:
        with pytest.raises(ConfigurationError, match="must run one tuner at a time") as caught:
            self.study.evaluate({"lr": 0.3}, steps=1)
        self.refused = str(caught.value)
        return super().tell(report)


def test_optimize_second_tuner_meanwhile_is_refused(tmp_path: Path, client: Client) -> None:
    study = make(tmp_path)
    tuner = Nested(SPACE, max_steps=STEPS)
    tuner.study = study
    study.optimize(tuner, client=client, progress=False)
    assert tuner.refused.startswith("study 'descent' must run one tuner at a time")
    assert len(study.trials) == 3
    run(study, client, steps=1)
    assert len(study.trials) == 6, "afterwards it can be run again"
    study.close()


def test_evaluate_trains_one_configuration_once(
    tmp_path: Path, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    study = make(tmp_path)
    metrics = study.evaluate({"lr": Constant(0.1)}, steps=4, client=client)
    assert metrics["loss"] == pytest.approx(0.9**8)
    assert study.trials[0].params == {"lr": 0.1}
    before = steps_counted(tmp_path)
    assert before == 4
    assert study.evaluate({"lr": 0.1}, steps=4) == metrics  # starts no cluster
    assert len(study.trials) == 1
    assert study.evaluate({"lr": 0.1}, steps=5, client=client)["loss"] == pytest.approx(0.9**10)
    assert steps_counted(tmp_path) == before + 1
    study.evaluate({"lr": MultiStep(0.1, milestones=[4], gamma=0.5)}, steps=4, client=client)
    assert steps_counted(tmp_path) == before + 1
    study.evaluate({"lr": 0.1}, steps=7, client=client, last_line=False)
    assert capsys.readouterr().err.splitlines() == [
        "descent: trained 4 steps to step 4, from the beginning",
        "descent: trained no step: the metrics of step 4 are stored",
        "descent: trained 1 step to step 5, from the stored state of step 4",
        "descent: trained no step: the metrics of step 4 are stored",
    ]
    study.close()


class StoppingClient:
    """A client that stops a study as soon as the study connects to its cluster."""

    def __init__(self, study: Study, client: Client) -> None:
        self._study = study
        self._client = client

    def __getattr__(self, name: str) -> object:
        if name == "scheduler":
            assert self._study.stop() is True
        return getattr(self._client, name)


def test_evaluate_stopped_study_raises(tmp_path: Path, client: Client) -> None:
    study = make(tmp_path)
    with pytest.raises(TrainerError, match="evaluate was stopped before step 6; the same call"):
        study.evaluate({"lr": 0.1}, steps=6, client=StoppingClient(study, client))
    metrics = study.evaluate({"lr": 0.1}, steps=6, client=client)
    assert metrics["loss"] == pytest.approx(0.9**12)
    assert len(study.trials) == 1
    study.close()


def test_dataframe_hyper_parameter_names_do_not_hide_columns(
    tmp_path: Path, client: Client
) -> None:
    space = dt.Space(lr=[0.1], value=[7], steps=[8], params_value=[9])
    study = make(tmp_path)
    run(study, client, space=space, steps=2)
    frame = study.trials_dataframe()
    named = ["lr", "params_params_value", "params_steps", "params_value"]
    assert sorted(frame.columns) == sorted(["number", "state", "steps", "value", *named])
    row = frame.iloc[0]
    assert (row["steps"], row["value"]) == (2, study.trials[0].value)
    assert (row["params_params_value"], row["params_value"], row["params_steps"]) == (7, 9, 8)
    study.close()


def test_trial_has_the_metrics_of_its_requested_steps(tmp_path: Path, client: Client) -> None:
    study = make(tmp_path)
    space = dt.Space(lr=[0.1])
    run(study, client, space=space, steps=3)
    run(study, client, space=space, steps=5)
    assert [list(trial.metrics) for trial in study.trials] == [[1, 2, 3], [1, 2, 3, 4, 5]]
    study.close()


def test_user_attributes_are_kept(tmp_path: Path) -> None:
    study = make(tmp_path)
    study.set_user_attr("owner", "me")
    study.set_user_attr("owner", {"name": ["you"]})
    with pytest.raises(ConfigurationError, match="user attribute 'hook' must be a JSON value"):
        study.set_user_attr("hook", print)
    study.close()
    again = make(tmp_path, load_if_exists=True)
    assert again.user_attrs == {"owner": {"name": ["you"]}}
    again.close()


def test_attributes_and_checks_of_another_process_are_read(
    tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "on")
    study = make(tmp_path, audit=0)
    other = make(tmp_path, load_if_exists=True)
    other.set_user_attr("owner", "me")
    other.record_check(True, "")
    run(study, client)
    assert study.summary()["steps_audited"] == 0, "the verdict is known"
    assert study.user_attrs == other.user_attrs == {"owner": "me"}
    assert other.summary()["wall_seconds"] == study.summary()["wall_seconds"] > 0
    study.set_user_attr("owner", "you")
    assert other.user_attrs == {"owner": "you"}
    other.record_check(False, "state['x'] differs")
    with pytest.raises(ConfigurationError, match=r"state\['x'\] differs"):
        run(study, client, steps=STEPS + 1)
    other.close()
    study.close()


def test_study_continues_from_decisions_of_another_process(tmp_path: Path, client: Client) -> None:
    study = make(tmp_path)
    other = make(tmp_path, load_if_exists=True)
    run(study, client)
    run(other, client)  # returns at once
    assert len(other.trials) == 3
    run(other, client, steps=STEPS + 1)
    run(study, client, steps=STEPS + 2)
    assert [trial.steps for trial in study.trials] == [6, 6, 6, 7, 7, 7, 8, 8, 8]
    assert steps_counted(tmp_path) == UNIQUE + 3 * 2
    other.close()
    study.close()


def test_failed_write_is_forgotten_by_the_next_run(tmp_path: Path, client: Client) -> None:
    with opening_with(partial(open_study, open_database=FullDisk)):
        study = make(tmp_path)
    disk = study.database
    assert isinstance(disk, FullDisk)
    disk.is_full = True
    with pytest.raises(StorageError, match="the disk is full"):
        run(study, client)
    disk.is_full = False
    run(study, client)
    assert [trial.number for trial in study.trials] == [0, 1, 2]
    assert {trial.state for trial in study.trials} == {dt.TrialState.COMPLETE}
    study.close()


class Meddled(dt.algos.Grid):
    """Decides while another process writes to the study's log."""

    database = ""

    def tell(self, report: dt.types.Report) -> list[dt.types.Decision]:
        with closing(Database(self.database)) as database:
            number = 1 + max((event.number for event in database.events(1)), default=-1)
            database.write(Batch(events=[EventRow(study_id=1, number=number, payload={})]))
        return super().tell(report)


def test_second_driver_of_a_study_makes_the_first_raise(tmp_path: Path, client: Client) -> None:
    study = make(tmp_path)
    tuner = Meddled(SPACE, max_steps=STEPS)
    tuner.database = str(tmp_path / "dasktune.db")
    message = "study 'descent': another process is running this study; "
    with pytest.raises(StorageError, match=message) as caught:
        study.optimize(tuner, client=client, progress=False)
    assert "INSERT" not in str(caught.value)
    study.close()


def test_two_creators_of_one_study_one_creates_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    barrier = threading.Barrier(2, timeout=30)
    looked = threading.local()

    class LooksTogether(Database):
        def study(self, name: str) -> StudyRow | None:
            row = super().study(name)
            if not getattr(looked, "once", False):
                looked.once = True
                barrier.wait()
            return row

    def create(load: bool) -> object:
        try:
            study = dt.create_study(
                None, name="own", metric="loss", storage=tmp_path, load_if_exists=load
            )
        except ConfigurationError as error:
            return str(error)
        study.close()
        return study.results.row

    with opening_with(partial(open_study, open_database=LooksTogether)):
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(create, [True, True])
        assert first == second
        shutil.rmtree(tmp_path)
        with ThreadPoolExecutor(2) as pool:
            rows_or_errors = [*pool.map(create, [False, False])]
    (error,) = [each for each in rows_or_errors if isinstance(each, str)]
    assert "study 'own' exists already; open it with load_if_exists=True" in error


def test_merge_false_shares_no_steps(tmp_path: Path, client: Client) -> None:
    study = make(tmp_path, merge=False)
    run(study, client)
    merged = make(tmp_path, name="merged")
    run(merged, client)
    merged.close()
    assert steps_counted(tmp_path) == 3 * STEPS + UNIQUE, "nor with other studies"
    summary = study.summary()
    assert summary["steps_executed"] == 3 * STEPS
    assert summary["merge_rate"] == 1.0
    assert [trial.value for trial in study.trials] == pytest.approx(
        [0.9**12, 0.9**4 * 0.8**8, 0.9**8 * 0.99**4]
    )
    study.close()


def test_merge_false_shares_nothing_with_earlier_studies(tmp_path: Path, client: Client) -> None:
    first = make(tmp_path, name="first", merge=False)
    run(first, client)
    first.close()
    second = make(tmp_path, name="second", merge=False)
    run(second, client)
    second.close()
    assert steps_counted(tmp_path) == 2 * 3 * STEPS
    again = make(tmp_path, name="first", merge=False, load_if_exists=True)
    run(again, client, steps=STEPS - 1)
    assert again.summary()["steps_executed"] == 3 * STEPS + 3 * (STEPS - 1), "trials, too"
    assert len(again.trials[0].metrics) == STEPS, "but it finds what it has trained"
    again.close()


def test_report_every_reports_also_at_the_end(tmp_path: Path, client: Client) -> None:
    study = make(tmp_path, report_every=4)
    run(study, client, space=dt.Space(lr=[Exponential(0.1, 0.9)]), steps=7)
    assert set(study.trials[0].metrics) == {4, 7}
    study.close()


def test_checkpoint_every_saves_also_at_the_end(tmp_path: Path, client: Client) -> None:
    study = make(tmp_path, checkpoint_every=3)
    run(study, client, space=dt.Space(lr=[0.1]), steps=7)
    commits = [study.store.commit_of(key) for key in list(study.store.keys())]
    assert {commit.step for commit in commits if commit} == {3, 6, 7}
    study.close()


def test_failed_check_forbids_merging(tmp_path: Path, client: Client) -> None:
    study = make(tmp_path)
    run(study, client, steps=1)
    study.record_check(False, "state['x'] differs")
    with pytest.raises(ConfigurationError, match=r"must resume exactly.*state\['x'\] differs"):
        run(study, client)
    study.optimize(
        dt.algos.Grid(SPACE, max_steps=STEPS),
        client=client,
        progress=False,
        allow_failed_check=True,
    )
    study.record_check(True, "")
    run(study, client, steps=STEPS + 1)
    study.close()


def test_failed_check_forbids_merging_under_every_name(tmp_path: Path, client: Client) -> None:
    first = make(tmp_path, name="first")
    first.record_check(False, "state['x'] differs")
    first.close()
    parts = {"database": str(tmp_path / "other.db"), "name": "second"}
    for study in (make(tmp_path, name="second"), make(tmp_path, **parts)):
        with pytest.raises(ConfigurationError, match=r"must resume exactly.*state\['x'\] differs"):
            run(study, client)
        assert study.trials == []
        study.close()
    control = make(tmp_path, name="control", merge=False)
    run(control, client)
    control.close()


def test_failed_check_of_other_code_forbids_nothing(tmp_path: Path, client: Client) -> None:
    first = make(tmp_path, trainer=Other, name="first")
    first.record_check(False, "state['x'] differs")
    first.close()
    second = make(tmp_path, name="second")
    run(second, client)
    second.close()


@pytest.mark.process
def test_check_resume_records_its_verdict_where_it_is_told(
    tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "on")
    config = {"log": str(tmp_path / "steps")}
    places = {"storage": tmp_path, "database": str(tmp_path / "checks.db")}
    for trainer, ok in ((Descent, True), (Restarting, False)):
        report = dt.check_resume(trainer, {"lr": 0.1}, config=config, run=FORKED, **places)
        assert report.ok is ok
    with closing(Database(tmp_path / "checks.db", create=False)) as database:
        study = make(tmp_path, audit=0)
        (found,) = database.verdicts(study.results.row.spec["fingerprint"])
    assert (found.ok, found.device, found.rule, found.splits) == (True, "cpu", RULE, [2, 3, 5])
    assert found.steps == 18
    assert found.versions["numpy"] == np.__version__
    run(study, client)
    assert study.summary()["steps_audited"] == 0, "the verdict is known"
    study.close()
    with (
        closing(make(tmp_path, trainer=Restarting, name="restarting")) as wrong,
        pytest.raises(
            ConfigurationError, match=r"(?s)Restarting must resume exactly.*trainer\.count"
        ),
    ):
        run(wrong, client)


def test_check_false_does_not_allow_a_failed_check(tmp_path: Path, client: Client) -> None:
    study = make(tmp_path)
    tuner = dt.algos.Grid(SPACE, max_steps=1)
    study.optimize(tuner, client=client, progress=False, check=False)
    study.record_check(False, "state['x'] differs")
    more = dt.algos.Grid(SPACE, max_steps=2)
    with pytest.raises(ConfigurationError, match=r"state\['x'\] differs"):
        study.optimize(more, client=client, progress=False, check=False)
    study.close()


def test_best_trial_ignores_values_that_are_not_finite(tmp_path: Path, client: Client) -> None:
    study = make(tmp_path)
    run(study, client, space=dt.Space(lr=[0.1, 1e200, 1e308]), steps=3)
    assert not math.isfinite(study.trials[2].value)
    assert study.best_trial.number == 0
    study.close()


def test_study_keeps_its_store_moved_or_emptied(tmp_path: Path) -> None:
    def create(storage: str) -> None:
        dt.create_study(
            Descent,
            name="one",
            storage=str(tmp_path / storage),
            database=str(tmp_path / "studies.db"),
            metric="height",
            direction="minimize",
            load_if_exists=True,
        ).close()

    create("a")
    with pytest.raises(ConfigurationError, match=r"must have the store .*/a, got .*/b; another"):
        create("b")
    (tmp_path / "a").rename(tmp_path / "c")
    create("c")
    shutil.rmtree(tmp_path / "c")
    create("a")


def test_create_study_budget_without_trainer_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="budget must be None without a trainer"):
        dt.create_study(None, name="own", storage="memory://own", metric="loss", budget="1 MB")
