"""MLflow: runs are read back with its own client (docs/loggers.md)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dasktune.errors import ConfigurationError, StorageError
from dasktune.integrations.mlflow import RUN, MLflow
from dasktune.mirror import LoggedStudy, TrialRun
from dasktune.types import Objective, TrialState
from tests.integrations.logged import CURVES, make, run
from tests.pages import python_blocks

pytestmark = [
    pytest.mark.framework("mlflow"),
    pytest.mark.filterwarnings("ignore"),
]

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a store of files, which is made in no time."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return f"file://{tmp_path}/mlruns"


def runs(uri: str, experiment: str = "net") -> list[Any]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    number = client.get_experiment_by_name(experiment).experiment_id
    return sorted(client.search_runs([number]), key=lambda run: run.info.run_name)


def histories(uri: str, **options: Any) -> dict[str, dict[str, list[tuple[int, float]]]]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    return {
        run.info.run_name: {
            name: [
                (metric.step, metric.value)
                for metric in client.get_metric_history(run.info.run_id, name)
            ]
            for name in run.data.metrics
        }
        for run in runs(uri, **options)
    }


def test_runs_in_sqlite_have_each_step_once(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    run(make(tmp_path, loggers=[MLflow(uri)]))
    assert histories(uri) == CURVES
    first, second = runs(uri)
    assert [first.info.status, second.info.status] == ["FINISHED"] * 2
    assert first.data.params == {"lr": "1.0"}
    assert "shared" not in first.data.tags
    assert second.data.tags["shared_with"] == "0"
    assert second.data.tags["mlflow.note.content"].endswith("other trials: steps 1-4: trial 0")
    study = make(tmp_path)
    MLflow(uri).export(study)
    assert histories(uri) == CURVES
    MLflow(uri, experiment="again").export(study)
    assert histories(uri, experiment="again") == CURVES
    study.close()


def trial(steps: int, state: TrialState = TrialState.RUNNING, first: int = 1) -> TrialRun:
    return TrialRun(
        id="0123456789abcdef-trial-0000",
        name="trial-0000",
        number=0,
        state=state,
        steps=steps,
        values={"loss": 0.5},
        error="broken" if state is TrialState.FAIL else "",
        user_attrs={},
        seed=0,
        params={"lr (a)": 0.1},
        metrics={step: {"loss": 0.5, "size": 1.0} for step in range(first, steps + 1)},
        hp={},
    )


STUDY = LoggedStudy(
    id="0123456789abcdef", name="net", objective=Objective.single("loss", "minimize")
)


def test_a_write_that_was_cut_short_is_completed(uri: str, monkeypatch: Any) -> None:
    opened = MLflow(uri).open(STUDY)
    opened.write(trial(2))
    log = opened._client.log_batch

    def part(run_id: str, metrics: Any = (), **more: Any) -> None:
        log(run_id, metrics=metrics[:3], **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(opened._client, "log_batch", part)
    with pytest.raises(KeyboardInterrupt):
        opened.write(trial(4, first=3))
    again = MLflow(uri).open(STUDY)
    assert again.written == {STUDY.id + "-trial-0000": {1, 2, 3}}
    again.write(trial(4, TrialState.COMPLETE, first=4))
    steps = [(step, 0.5) for step in range(1, 5)]
    assert histories(uri) == {
        "trial-0000": {
            "loss": steps,
            "size": [(step, 1.0) for step, _ in steps],
            "final/loss": [(4, 0.5)],
        }
    }
    assert runs(uri)[0].data.params == {"lr _a_": "0.1"}


def test_a_trial_that_goes_on_opens_its_run_again(uri: str) -> None:
    opened = MLflow(uri).open(STUDY)
    for steps, state in ((1, TrialState.FAIL), (2, TrialState.RUNNING), (3, TrialState.PRUNED)):
        opened = MLflow(uri).open(STUDY)
        opened.write(trial(steps, state, first=steps))
        (there,) = runs(uri)
        wanted = {"FAIL": "FAILED", "RUNNING": "RUNNING", "PRUNED": "FINISHED"}[state.value]
        assert (there.info.status, there.data.tags["state"]) == (wanted, state.value)
        assert there.data.tags[RUN] == f"{STUDY.id}-trial-0000"
    assert [step for step, _ in histories(uri)["trial-0000"]["loss"]] == [1, 2, 3]
    opened.close()


def test_an_address_that_mlflow_refuses_is_an_error() -> None:
    with pytest.raises(StorageError, match="cannot log study 'net' to MLflow: "):
        MLflow("gopher://127.0.0.1/none").open(STUDY)


def test_a_deleted_experiment_is_refused(uri: str) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    client.delete_experiment(client.create_experiment("net"))
    with pytest.raises(ConfigurationError, match="must be active, got a deleted one"):
        MLflow(uri).open(STUDY)


@pytest.mark.parametrize("given", [{"tracking_uri": ""}, {"tracking_uri": 3}, {"experiment": ""}])
def test_arguments_that_are_no_text_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(given))} must be a"):
        MLflow(**given)


def test_the_example_of_the_page_exports_a_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    *_, export, _ = python_blocks("loggers.md")
    run(make(tmp_path))
    monkeypatch.chdir(tmp_path)
    exec(compile(export, "loggers.md", "exec"), {"study": lambda: make(tmp_path)})
    assert histories(f"sqlite:///{tmp_path}/mlflow.db") == CURVES
