"""The log of a trial: what the stages on its path printed on workers, shared as they are."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from typer.testing import CliRunner

import dasktune as dt
from dasktune._study.deletion import delete_study
from dasktune.cli import app
from dasktune.errors import ConfigurationError
from dasktune.sequences import Piecewise

pytestmark = pytest.mark.cluster

logger = logging.getLogger("tests.stage_logs")
"""A logger without a handler: Python writes its warnings to standard error."""


class Talkative(dt.Trainer):
    """Prints each step to one stream and logs it, and fails where the rate is below zero."""

    def build(self, hp: Mapping[str, Any]) -> None:
        self.done = 0
        if not self.config.get("is_silent"):
            print("built")

    def train(self) -> None:
        self.done += 1
        if self.config.get("is_silent"):
            return
        print(f"step {self.done} at {self.hp['lr']}", file=sys.stderr)
        if self.hp["lr"] < 0:
            logger.warning("the rate is %s: token=%s", self.hp["lr"], "://ann:letmein@db")
            raise ValueError("the rate must be >= 0")

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.hp = {"lr": hp["lr"]}

    def evaluate(self) -> dict[str, float]:
        return {"loss": 1 / self.done}

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.done = state["done"]


def talkative(run: dt.Run) -> None:
    """Print each step from the function's own thread."""
    run.state["done"] = 0
    for step in run.steps():
        print(f"step {step} at {run['lr']}")
        run.report(loss=1 / (1 + step))


SPACE = dt.Space(lr=dt.Choice([Piecewise([0.1, later], [2]) for later in (0.2, 0.3, -1.0)]))


def run(
    folder: Path, client: Client, name: str, trainer: Any = Talkative, **config: object
) -> dt.Study:
    study = dt.create_study(
        trainer,
        name=name,
        storage=folder,
        metric="loss",
        direction="minimize",
        config=config,
    )
    tuner = dt.algos.Grid(SPACE, max_steps=4)
    study.optimize(tuner, client=client, check=False, progress=False, last_line=False)
    return study


@pytest.fixture
def study(tmp_path: Path, one_worker: Client) -> dt.Study:
    return run(tmp_path, one_worker, "talkative")


def test_stages_log_what_their_trainer_printed(study: dt.Study, tmp_path: Path) -> None:
    with closing(study):
        logs = [study.stage_logs(number) for number in (0, 1)]
        trunk, own = logs[0]
        assert trunk.text == "built\nstep 1 at 0.1\nstep 2 at 0.1"
        assert (trunk.start, trunk.stop, trunk.trials) == (0, 2, (0, 1, 2))
        assert logs[1][0] == trunk, "trials that share a stage share its log"
        assert own.text.endswith("step 3 at 0.2\nstep 4 at 0.2")
        assert logs[1][1].text.endswith("step 3 at 0.3\nstep 4 at 0.3")
        assert trunk.heading == (
            f"steps 0 to 2, trained for trials 0, 1, 2 of talkative on {trunk.worker}"
        )
        failed = study.stage_logs(2)[1:]
        assert {log.status for log in failed} == {"failed"}
        for log in failed:
            assert log.text.endswith("step 3 at -1.0\nthe rate is -1.0: token=://***@db")
        with pytest.raises(ConfigurationError, match="trial must be 0 to 2, got 3"):
            study.stage_logs(3)
    shown = CliRunner().invoke(app, ["logs", str(tmp_path), "--trial", "0"])
    assert shown.stdout.startswith(f"--- {trunk.heading}\n{trunk.text}\n--- steps 2 to 4, trained")
    shown = CliRunner().invoke(app, ["logs", str(tmp_path), "--trial", "0", "--json"])
    assert json.loads(shown.stdout)[0] == {**trunk.to_json(), "trials": [0, 1, 2]}


def test_functions_log_to_the_stage_of_the_moment(tmp_path: Path, one_worker: Client) -> None:
    with closing(run(tmp_path, one_worker, "function", talkative)) as study:
        for number, rate in enumerate((0.2, 0.3)):
            trunk, own = study.stage_logs(number)
            assert trunk.text == "step 0 at 0.1\nstep 1 at 0.1"
            assert own.text == f"step 2 at {rate}\nstep 3 at {rate}"


def test_logs_of_another_study_are_found_and_go_with_it(
    study: dt.Study, tmp_path: Path, one_worker: Client
) -> None:
    attempts = [row.attempt for row in study.stages()]
    study.close()
    second = run(tmp_path, one_worker, "second")
    trunk, *_ = second.stage_logs(0)
    assert trunk.study == "talkative"
    assert [*second.database.logs_of(attempts)] != []
    delete_study("talkative", storage=tmp_path)
    assert [*second.database.logs_of(attempts)] == []
    second.close()


def test_silent_stages_have_no_log(tmp_path: Path, two_threads: Client) -> None:
    with closing(run(tmp_path, two_threads, "silent", is_silent=True)) as study:
        assert study.stage_logs(0) == []
        assert [*study.database.logs_of(row.attempt for row in study.stages())] == []
    shown = CliRunner().invoke(app, ["logs", str(tmp_path), "--trial", "0"])
    assert (shown.stdout, shown.exit_code) == ("", 0)
    assert "its stages have printed nothing" in shown.stderr
