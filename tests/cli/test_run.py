"""`dasktune run` in processes of its own: to the end, interrupted, with failures."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest
from distributed import LocalCluster

from dasktune._driver.history import AUDITED
from dasktune.cli.status import StudyStatus, read
from dasktune.cli.study_file import load
from tests.study_folder import working_in

from .conftest import PATIENCE, UNIQUE, Folder

pytestmark = [pytest.mark.cluster, pytest.mark.process]

RUN = ("run", "counting.py", "--workers", "2", "--no-progress", "--no-report")


def test_a_study_runs_to_its_end_and_then_returns_at_once(folder: Folder) -> None:
    first = folder.command(*RUN)
    assert first.returncode == 0, first.stderr
    assert "best loss: 0.2 (trial 0, 12 steps)\n  lr  0.1\n" in first.stdout
    assert "\n2      0.8   12     complete  Piecewise([0.1, 0.3],...\n" in first.stdout
    assert "trained 69% of the steps asked for (33 of 48)" in first.stdout
    assert len(folder.steps()) == len(set(folder.steps())) == UNIQUE

    again = folder.command(*RUN, "--json")
    assert again.returncode == 0, again.stderr
    found = json.loads(again.stdout)
    assert found["best"]["params"] == {"lr": 0.1}
    assert found["failed"] == []
    assert found["report"] is None
    assert found["summary"]["steps_executed"] == UNIQUE
    assert len(folder.steps()) == UNIQUE


def test_transfer_from_an_unknown_place_is_refused(folder: Folder) -> None:
    done = folder.command(*RUN, "--transfer", "store")
    assert done.returncode == 2, done.stdout
    assert "unknown transfer 'store'; known: database" in done.stderr


def test_a_failed_trial_is_named_and_the_others_complete(folder: Folder) -> None:
    done = folder.command(*RUN, "--config", "bad=true", "--json")
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert found["failed"] == [{"number": 4, "error": "ValueError: lr must be >= 0, got -1.0"}]
    assert found["summary"]["trials"] == 5
    (status,) = json.loads(folder.command("status", "counting.py", "--json").stdout)
    assert status["trials"] == {"COMPLETE": 4, "FAIL": 1}


def test_retry_failed_trains_only_failed_trials_again(folder: Folder) -> None:
    first = folder.command(*RUN, "--config", "bad=true")
    assert first.returncode == 1, first.stderr
    steps = folder.steps()
    (before,) = read(str(folder.path / "runs" / "counting"))
    again = folder.command(*RUN, "--config", "bad=true")
    (same,) = read(str(folder.path / "runs" / "counting"))
    assert (again.returncode, same.stages) == (1, before.stages), "it had ended"
    assert "nothing was left to train in this run" in again.stdout
    assert "nothing was left" not in first.stdout
    again = folder.command(*RUN, "--config", "bad=true", "--retry-failed")
    assert again.returncode == 1, again.stderr
    (after,) = read(str(folder.path / "runs" / "counting"))
    assert after.trials == before.trials
    assert after.stages["failed"] > before.stages["failed"]
    assert after.stages["trained"] == before.stages["trained"]
    assert folder.steps() == steps


def test_retrain_withdrawn_trains_trials_again_alone(folder: Folder) -> None:
    assert folder.command(*RUN).returncode == 0
    found = {"audit": "differs", "trials": [1], "after": 6, "steps": 3, "text": "audit failed"}
    with working_in(folder.path):
        study = load(Path("counting.py")).study()
        study.results.history.note(AUDITED, run="of a test", **found)
        study.close()
    marked = folder.command(*RUN)
    assert marked.returncode == 1, "trial 1 rests on a withdrawn metric"
    assert "dasktune run --retrain-withdrawn, trains them again, alone" in marked.stdout
    assert len(folder.steps()) == UNIQUE
    again = folder.command(*RUN, "--retrain-withdrawn", "--json")
    assert again.returncode == 0, again.stderr
    assert len(folder.steps()) == UNIQUE + 4 * 12
    summary = json.loads(again.stdout)["summary"]
    assert summary["withdrawn"] == {"trials": [], "others": 0}
    assert summary["steps_withdrawn"] == UNIQUE


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_goes_on_where_it_was(
    folder: Folder, signal_number: signal.Signals
) -> None:
    folder.hold(at=5)
    process = folder.start(*RUN, "--config", "pause=0.5")
    folder.wait_for_steps(8, process)
    if signal_number is signal.SIGINT:
        os.killpg(process.pid, signal_number)  # as a terminal does: to the workers, too
    else:
        process.send_signal(signal_number)
    assert process.stderr is not None
    assert any("interrupt again to give that up" in line for line in process.stderr)
    folder.go_on(at=5)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, errors
    assert "interrupted; the same command goes on where it was" in errors
    assert "Traceback" not in errors
    assert 8 <= len(folder.steps()) < UNIQUE

    done = folder.command(*RUN)
    assert done.returncode == 0, done.stderr
    assert len(folder.steps()) == len(set(folder.steps())) == UNIQUE


def test_a_second_interrupt_gives_up_what_runs_at_once(folder: Folder) -> None:
    process = folder.start(*RUN, "--config", "pause=100")
    database = folder.path / "runs" / "counting" / "dasktune.db"
    folder.wait_until(lambda: stages_that_run(database) == 2, process)
    os.killpg(process.pid, signal.SIGINT)
    assert process.stderr is not None
    assert any("interrupt again to give that up" in line for line in process.stderr)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "interrupted; the same command goes on where it was" in errors
    assert folder.steps() == []
    assert folder.command(*RUN).returncode == 0
    assert len(folder.steps()) == len(set(folder.steps())) == UNIQUE


def stages_that_run(database: Path) -> int:
    if not database.exists():
        return 0
    with closing(sqlite3.connect(database)) as connection, suppress(sqlite3.OperationalError):
        query = "SELECT count(*) FROM dasktune_stages WHERE status = 'running'"
        return int(connection.execute(query).fetchone()[0])
    return 0


def test_an_interrupt_while_the_cluster_starts_ends_cleanly(folder: Folder) -> None:
    process = folder.start(*RUN, "--config", "pause=3")
    folder.wait_for_file("runs/counting/dasktune.db", process)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert folder.command(*RUN).returncode == 0
    assert len(folder.steps()) == len(set(folder.steps())) == UNIQUE


def test_a_run_that_was_killed_repeats_only_what_was_not_durable(folder: Folder) -> None:
    folder.hold(at=9)
    process = folder.start(*RUN)
    folder.wait_for_steps(16, process)
    folder.wait_until(lambda: status_of(folder).steps_executed >= 6, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    (before,) = json.loads(folder.command("status", "counting.py", "--json").stdout)
    assert before["trials"] == {"RUNNING": 4}
    assert before["steps_requested"] == 48
    assert before["steps_executed"] >= 6
    trained = len(folder.steps())

    folder.go_on(at=9)
    done = folder.command(*RUN)
    assert done.returncode == 0, done.stderr
    assert len(set(folder.steps())) == UNIQUE
    # Stages that had ended are not trained again; two others were under way.
    assert len(folder.steps()) <= UNIQUE + trained - before["steps_executed"]


def status_of(folder: Folder) -> StudyStatus:
    (found,) = read(str(folder.path / "runs" / "counting"))
    return found


def test_a_cluster_that_is_there_runs_the_study(folder: Folder) -> None:
    with LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        local_directory=str(folder.path / "scratch"),
    ) as cluster:
        address = cluster.scheduler_address
        done = folder.command(
            "run", "counting.py", "--scheduler", address, "--no-report", "--config", "bad=1"
        )
        assert done.returncode == 1, done.stderr
        again = folder.command("run", "counting.py", "--scheduler", address, "--no-report")
        assert "trained 34% of the steps asked for (33 of 96)" in again.stdout, again.stderr
    assert len(folder.steps()) == len(set(folder.steps()))


def test_run_names_an_absent_scheduler(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT", "1s")
    done = folder.command("run", "counting.py", "--scheduler", "tcp://127.0.0.1:1", "--no-report")
    assert done.returncode == 1
    assert "cannot reach the scheduler tcp://127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_report_is_written_and_named(folder: Folder) -> None:
    done = folder.command(*RUN[:-1], "--report", "page.html")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("report: page.html\n")
    assert "counting" in (folder.path / "page.html").read_text()
    again = folder.command("report", "counting.py", "--output", "other.html")
    assert again.stdout == "other.html\n"
    assert (folder.path / "other.html").is_file()


def test_a_replay_derives_every_decision_again(folder: Folder) -> None:
    early = folder.command("replay", "counting.py")
    assert early.returncode == 2
    assert "study 'counting' has not run this tuner yet" in early.stderr
    assert folder.command(*RUN).returncode == 0
    done = folder.command("replay", "counting.py", "--log")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "identical: 6 calls of the tuner gave the recorded decisions"
    assert lines[0] == "the beginning"
    assert "  extend trial 3 to step 12" in lines
    assert sum("the report of trial" in line for line in lines) == 4
    assert lines[-2] == "  finish"
    with sqlite3.connect(folder.path / "runs/counting/dasktune.db") as database:
        forged = 'replace(payload, \'{"do":"finish"}\', \'{"do":"stop","trial":0}\')'
        database.execute(f"UPDATE dasktune_events SET payload = {forged}")
    other = folder.command("replay", "counting.py", "--json")
    assert other.returncode == 1, other.stderr
    found = json.loads(other.stdout)
    assert (found["identical"], found["calls"]) == (False, 6)
    assert "recorded {'do': 'stop', 'trial': 0}, now {'do': 'finish'}" in found["difference"]


def test_a_run_says_that_a_limit_has_ended_it(folder: Folder) -> None:
    command = (*RUN, "--config", "pause=0.02", "--steps", "10")
    for _ in range(2):
        done = folder.command(*command)
        assert done.returncode == 0, done.stderr
        assert "ended by its limits: " in done.stdout
        assert "of 10 steps were trained; a larger limit goes on" in done.stdout
    found = json.loads(folder.command(*command, "--json").stdout)
    assert "of 10 steps were trained" in found["limit"]
    assert len(folder.steps()) < UNIQUE
    assert (
        json.loads(folder.command(*RUN, "--config", "pause=0.02", "--json").stdout)["limit"] is None
    )


SOON = """
import dasktune as dt
from counting import Counting, study


def tuner(target=0.55):
    space = dt.Space(lr=[0.1, 0.05])
    return dt.algos.POP(space, target=target, trials=2, max_steps=12, sampler="grid")
"""


def test_a_tuner_that_knows_why_it_ended_says_so(folder: Folder) -> None:
    (folder.path / "soon.py").write_text(SOON)
    for _ in range(2):
        done = folder.command("run", "soon.py", "--workers", "1", "--no-progress", "--no-report")
        assert done.returncode == 0, done.stderr
        assert re.search(
            r"ended: the target was reached after .* s \(target 0.55, best", done.stdout
        )
    assert "process" in (told := folder.command("status", "soon.py").stdout)
    assert "the target was reached after" in told
    command = ("run", "soon.py", "--config", "target=-1.0", "--workers", "1", "--json")
    found = json.loads(folder.command(*command, "--no-report").stdout)
    assert found["ending"].startswith("no trial is left to go on (target -1, best ")
    assert found["limit"] is None
    assert found["had_ended"] is False
    assert json.loads(folder.command(*command, "--no-report").stdout)["had_ended"] is True


TWO = """
import dasktune as dt
from counting import Counting


class Two(Counting):
    def evaluate(self):
        return {**super().evaluate(), "rate": float(self.lr)}


def study():
    return dt.create_study(
        Two, name="two", storage="runs/counting", metric=["loss", "rate"],
        direction=["minimize", "maximize"], config={"log": "steps.log", "pause": 0.0},
        load_if_exists=True,
    )


def tuner():
    return dt.algos.Grid(dt.Space(lr=[0.01, 0.02, 0.05]), max_steps=4)
"""


def test_two_metrics_are_shown_as_what_they_are(folder: Folder) -> None:
    assert folder.command(*RUN).returncode == 0
    (folder.path / "two.py").write_text(TWO)
    done = folder.command("run", "two.py", "--workers", "2", "--no-report")
    assert done.returncode == 0, done.stderr
    assert "1 trial that no other beats in loss and rate:" in done.stdout
    found = json.loads(folder.command("run", "two.py", "--no-report", "--json").stdout)
    assert (found["metric"], found["best"]) == (["loss", "rate"], None)
    assert [one["number"] for one in found["best_trials"]] == [2]
    for study in ("two (minimize, maximize loss, rate)", "counting (minimize loss)"):
        status = folder.command("status", "runs/counting", "--study", study.partition(" ")[0])
        assert status.returncode == 0, status.stderr
        assert study in status.stdout


def test_stop_ends_a_run_and_the_same_command_goes_on(folder: Folder) -> None:
    folder.hold(at=5)
    process = folder.start(*RUN)
    folder.wait_for_steps(5, process)
    asked = folder.command("stop", "runs/counting")
    assert asked.returncode == 0, asked.stderr
    assert f"asked process {process.pid} on " in asked.stdout
    assert process.stderr is not None
    while "asked to stop by dasktune stop, " not in process.stderr.readline():
        assert process.poll() is None
    folder.go_on(at=5)
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    assert re.search(r"^stopped by dasktune stop, .*; the same command goes on$", output, re.M)
    assert 5 <= len(folder.steps()) < UNIQUE
    (status,) = read(str(folder.path / "runs" / "counting"))
    assert status.driver is not None
    assert status.driver.state == "interrupted"
    assert status.driver.message.startswith("stopped by dasktune stop, ")

    refused = folder.command("stop", "counting.py")
    assert refused.returncode == 2
    assert "study 'counting' must run to be stopped; its driver interrupted " in refused.stderr
    done = folder.command(*RUN)
    assert done.returncode == 0, done.stderr
    assert len(folder.steps()) == len(set(folder.steps())) == UNIQUE
