"""Weights & Biases, offline: runs are read back from its own files (docs/loggers.md)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dasktune.errors import ConfigurationError
from dasktune.integrations.wandb import WandB, records
from tests.integrations.logged import make, run
from tests.pages import python_blocks

pytestmark = [
    pytest.mark.framework("wandb"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.process,
]

os.environ.setdefault("WANDB_ERROR_REPORTING", "false")


def read(folder: Path) -> dict[str, list[Any]]:
    """Return name, notes, points and summary of each run, as W&B's files have them."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # its process goes on writing after the end of a run

    runs: dict[str, list[Any]] = {}
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=os.path.getmtime):
        for content in records(path.read_bytes()):
            record = Record.FromString(content)
            if record.HasField("run"):
                last = runs.setdefault(record.run.display_name, ["", [], {}])
                last[0] = record.run.notes or last[0]
            for item in record.history.item:
                name = item.key or ".".join(item.nested_key)
                if not name.startswith("_"):
                    last[1].append((record.history.step.num, name, json.loads(item.value_json)))
            for item in record.summary.update:
                name = item.key or ".".join(item.nested_key)
                if name.startswith(("final", "dasktune")):
                    last[2][name] = json.loads(item.value_json)
    return {name: [notes, sorted(points), ends] for name, (notes, points, ends) in runs.items()}


WHOLE = {
    "trial-0000": [
        "",
        [(step, "loss", float(step)) for step in range(1, 9)],
        {"final/loss": 8.0, "dasktune_end": "COMPLETE at step 8"},
    ],
    "trial-0001": [
        "Shared steps are in the runs of other trials: steps 1-4: trial 0",
        sorted(
            [(step, "loss", 2 + step / 2) for step in range(5, 9)]
            + [(step, "hp/lr", 0.5) for step in range(5, 9)]
        ),
        {"final/loss": 6.0, "dasktune_end": "COMPLETE at step 8"},
    ],
}


def test_offline_runs_have_each_shared_step_once(tmp_path: Path) -> None:
    run(make(tmp_path, loggers=[WandB(folder=tmp_path, mode="offline")]))
    assert read(tmp_path) == WHOLE
    files = [*tmp_path.glob("wandb/offline-run-*")]
    study = make(tmp_path)
    WandB(folder=tmp_path, mode="offline").export(study)
    assert [*tmp_path.glob("wandb/offline-run-*")] == files
    # A crash has cut the file of the first run short.
    (path,) = tmp_path.glob("wandb/offline-run-*/*trial-0000.wandb")
    os.truncate(path, path.stat().st_size * 2 // 3)
    cut = read(tmp_path)["trial-0000"]
    assert len(cut[1]) < 8
    WandB(folder=tmp_path, mode="offline").export(study)
    assert read(tmp_path) == WHOLE
    study.close()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"project": ""}, "project must be a name or None"),
        ({"folder": "s3://bucket"}, "must be a local folder"),
        ({"mode": "of"}, "mode"),
    ],
)
def test_wrong_arguments_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        WandB(**given)


def test_online_without_a_login_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    study = make(tmp_path)
    with pytest.raises(ConfigurationError, match="type 'wandb login', or write"):
        WandB(folder=tmp_path, mode="online").export(study)
    study.close()


def test_the_example_of_the_page_exports_a_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    *_, export = python_blocks("loggers.md")
    run(make(tmp_path))
    monkeypatch.chdir(tmp_path)
    exec(compile(export, "loggers.md", "exec"), {"study": lambda: make(tmp_path)})
    assert read(tmp_path) == WHOLE
