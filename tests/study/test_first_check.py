"""The check of a trainer by the first `optimize` of a study, in processes of its own."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client, LocalCluster

import dasktune as dt
from dasktune._driver.run import device_of_run
from dasktune._engine.limits import Limits
from dasktune._study import first_check
from dasktune._study.check_beside import CheckBeside
from dasktune._study.current_run import CurrentRun
from dasktune._study.first_check import (
    CheckedTrial,
    FirstCheck,
    KnownTrials,
    NewTuner,
    NotChecked,
    TrainerChecks,
    trials_ahead,
)
from dasktune._study.study import Study
from dasktune.errors import ConfigurationError
from dasktune.graph.events import StagesHeld
from dasktune.needs import Needs
from dasktune.report.progress import RunDisplay
from dasktune.trainer.check_switch import SWITCH
from tests.forgetful import Tally
from tests.forked import run_forked
from tests.holding import Gate, pass_gate, wait_until
from tests.toy_trainers import Adding
from tests.trainer.kinds import untracked

STEPS = 7
SPACE = dt.Space(lr=[0.1, dt.sequences.Piecewise([0.1, 0.2], boundaries=[4])])
UNIQUE = 7 + 3
CHECKED = 18
"""Steps of a whole check."""
WAITS = "what goes on from a stored state waits for it"


class Logged(Adding):
    """Writes the process of every step that it trains into a file."""

    ignored_config = ("log", "driver", "gate")

    def train(self) -> None:
        with open(self.config["log"], "a") as file:
            file.write(f"{os.getpid()}\n")
        super().train()

    @property
    def is_in_check(self) -> bool:
        """Whether this process is one of a check; these tests' workers are threads."""
        return os.getpid() != self.config["driver"]


class Forgetful(Logged):
    """Leaves out of its state a counter that decides every later step."""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.calls = Tally(0)

    def train(self) -> None:
        super().train()
        self.calls += 1
        self.total += self.calls


class Hanging(Logged):
    """Never ends its first step, in a check."""

    def train(self) -> None:
        super().train()
        if self.is_in_check:
            threading.Event().wait()


class Gated(Logged):
    """Waits at a gate before its second step, in a check."""

    def train(self) -> None:
        super().train()
        if self.is_in_check and self.total > self.lr:
            pass_gate(self.config["gate"])


class Crashing(Logged):
    """Ends its interpreter when a state is loaded, in a check."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.is_in_check:
            os.kill(os.getpid(), signal.SIGSEGV)
        super().load_state_dict(state)


class Failing(Logged):
    """Needs a file that the driver's machine lacks, in a check."""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        if self.is_in_check:
            raise FileNotFoundError("/data is not mounted")


class Buggy(Logged):
    """Has a bug that each machine finds."""

    def train(self) -> None:
        super().train()
        self.totl += 1


class FailsByValue(Logged):
    """Fails in the trial that the check tries first."""

    def setup(self, hp: Mapping[str, Any]) -> None:
        super().setup(hp)
        if hp["lr"] == 0.2:
            raise ValueError("no such combination")


class Refusing(Logged):
    """Refuses a value that changes."""

    def setup(self, hp: Mapping[str, Any]) -> None:
        if hasattr(self, "lr"):
            raise ConfigurationError("the value of 'lr' changes, and nothing takes it over")
        super().setup(hp)


class Misspelt(Logged):
    """Reads a hyper-parameter by a wrong name."""

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.rate = hp["lrr"]


@pytest.fixture(autouse=True)
def checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn the checks on, which are off in this suite."""
    monkeypatch.setenv(SWITCH, "on")


@contextmanager
def made(folder: Path, trainer: Any, **options: Any) -> Iterator[Study]:
    """Give a study of a trainer in a folder."""
    place = {"name": "first", "metric": "loss", "storage": folder / "store"}
    named = {**place, "audit": 0, **options}  # audits count their steps, too
    config = {"log": str(folder / "log"), "driver": os.getpid(), "gate": str(folder / "gate")}
    with closing(dt.create_study(trainer, config=config, **named)) as study:
        yield study


def run(study: Study, client: Client, *, progress: bool | None = False, **options: Any) -> None:
    tuner = dt.algos.Grid(SPACE, max_steps=STEPS)
    study.optimize(tuner, client=client, progress=progress, last_line=False, **options)


def own_steps(folder: Path) -> int:
    """Return the number of steps that workers, which are threads of this process, have begun."""
    lines = (folder / "log").read_text().split() if (folder / "log").exists() else []
    return sum(int(line) == os.getpid() for line in lines)


@pytest.mark.process
def test_stages_from_step_0_train_beside_the_check(tmp_path: Path, two_threads: Client) -> None:
    gate = Gate(tmp_path / "gate")
    seen: list[int] = []

    def open_later() -> None:
        wait_until(lambda: own_steps(tmp_path) == STEPS and checked_steps(tmp_path) > 1)
        seen.append(own_steps(tmp_path))
        gate.open()

    opening = threading.Thread(target=open_later)
    with gate, made(tmp_path, Gated) as study:
        opening.start()
        run(study, two_threads)
        opening.join()
        assert seen == [STEPS], "one trial is trained; the other one loads its state"
        summary = study.summary()
        assert (summary["steps_executed"], summary["steps_audited"]) == (UNIQUE, CHECKED)
        assert recorded(study) == ([True], 1)


@pytest.mark.process
def test_a_run_that_loads_no_state_ends_before_its_check(
    tmp_path: Path, two_threads: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with Gate(tmp_path / "gate") as gate, made(tmp_path, Gated) as study:
        tuner = dt.algos.Grid(dt.Space(lr=[0.1, 0.2]), max_steps=STEPS)
        study.optimize(tuner, client=two_threads, progress=False, last_line=False)
        assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 2
        assert 1 <= study.summary()["steps_audited"] < CHECKED
        assert recorded(study) == ([], 0)
        assert caplog.text == ""
        assert no_child_trains(tmp_path)
        gate.open()
        longer = dt.algos.Grid(dt.Space(lr=[0.1, 0.2]), max_steps=STEPS + 1)
        study.optimize(longer, client=two_threads, progress=False, last_line=False)
        assert study.summary()["steps_executed"] == 2 * (STEPS + 1), "it loads both states"
        assert recorded(study) == ([True], 1)


def checked_steps(folder: Path) -> int:
    """Return the number of steps that other processes than this one have begun."""
    lines = (folder / "log").read_text().split() if (folder / "log").exists() else []
    return sum(int(line) != os.getpid() for line in lines)


def recorded(study: Study) -> tuple[list[bool], int]:
    """Return the verdicts in the database, and their number in the store."""
    fingerprint = study.results.row.spec["fingerprint"]
    stored = Path(study.store.url, "verdicts", fingerprint)
    verdicts = study.database.verdicts(fingerprint)
    return [each.ok for each in verdicts], len(list(stored.iterdir())) if stored.exists() else 0


@pytest.mark.process
def test_a_wrong_trainer_resumes_nothing(tmp_path: Path, two_threads: Client) -> None:
    with made(tmp_path, Forgetful) as study:
        with pytest.raises(
            ConfigurationError, match=r"(?s)Forgetful must resume exactly.*trainer\.calls"
        ):
            run(study, two_threads)
        summary = study.summary()
        assert summary["steps_executed"] <= STEPS, "the second trial would load a state"
        assert {trial.state.name for trial in study.trials} <= {"COMPLETE", "RUNNING"}
        assert summary["steps_audited"] == checked_steps(tmp_path) > 0
        assert recorded(study) == ([False], 1)
    before = checked_steps(tmp_path)
    with made(tmp_path, Forgetful, name="second", database=str(tmp_path / "other.db")) as second:
        with pytest.raises(ConfigurationError, match=r"(?s)must resume exactly.*trainer\.calls"):
            run(second, two_threads)
        assert second.summary()["steps_audited"] == 0
        run(second, two_threads, allow_failed_check=True)
        assert recorded(second) == ([False], 1)
    assert checked_steps(tmp_path) == before


@pytest.mark.process
def test_a_passed_check_is_recorded_once_for_all_studies(
    tmp_path: Path, two_threads: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(RunDisplay, "say", lambda _, text: lines.append(text))
    with made(tmp_path, Logged) as study:
        run(study, two_threads, progress=True)
        checking = "checking that Logged resumes exactly: "
        assert lines[0] == "starting workers"
        assert f"{checking}step 1 of {CHECKED}; {WAITS}" in lines
        summary = study.summary()
        assert (summary["steps_executed"], summary["steps_audited"]) == (UNIQUE, CHECKED)
        assert summary["merge_rate"] == 2 * STEPS / UNIQUE
        assert recorded(study) == ([True], 1)
        (found,) = study.database.verdicts(study.results.row.spec["fingerprint"])
        assert (found.splits, found.steps) == ([2, 3, 5], CHECKED)
        study.optimize(dt.algos.Grid(SPACE, max_steps=STEPS + 1), client=two_threads)
    for database in ("store/studies.db", "other.db"):
        place = {"database": str(tmp_path / database), "name": "second"}
        with made(tmp_path, Logged, **place) as second:
            run(second, two_threads)
            assert second.summary()["steps_audited"] == 0
            assert recorded(second) == ([True], 1)
    assert checked_steps(tmp_path) == CHECKED


@pytest.mark.process
def test_a_check_that_an_older_version_passed_is_made_again(
    tmp_path: Path, two_threads: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    with made(tmp_path, Logged) as study:
        fingerprint = study.results.row.spec["fingerprint"]
        study.results.history.note("check", fingerprint=fingerprint, ok=True, text="passed")
        run(study, two_threads, progress=None)
        assert study.summary()["steps_audited"] == CHECKED
    line = f"first: checking that Logged resumes exactly; {WAITS}\n"
    assert capsys.readouterr().err == line, "there is no terminal"


@pytest.mark.parametrize("reason", ["check", "merge", "switch"])
def test_a_study_that_wants_no_check_starts_none(
    tmp_path: Path, two_threads: Client, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setenv(SWITCH, "off" if reason == "switch" else "on")
    with made(tmp_path, Forgetful, merge=reason != "merge") as study:
        run(study, two_threads, check=reason != "check")
        assert (checked_steps(tmp_path), recorded(study)) == (0, ([], 0))
        assert study.summary()["steps_audited"] == 0


@pytest.mark.process
@pytest.mark.parametrize(
    ("trainer", "reason"),
    [
        (Crashing, "Crashing failed in check_resume"),
        (Failing, "FileNotFoundError: /data is not mounted"),
    ],
)
def test_a_trainer_that_fails_in_the_check_is_trained(
    tmp_path: Path,
    two_threads: Client,
    caplog: pytest.LogCaptureFixture,
    trainer: type,
    reason: str,
) -> None:
    with made(tmp_path, trainer) as study:
        run(study, two_threads)
        assert "Nothing else tests that; 'dasktune check' has no time limit" in caplog.text
        assert f"{trainer.__name__} was not checked: " in caplog.text
        assert reason in caplog.text
        assert (study.summary()["steps_executed"], recorded(study)) == (UNIQUE, ([], 0))
        begun = checked_steps(tmp_path)
        assert study.summary()["steps_audited"] == begun
        study.optimize(dt.algos.Grid(SPACE, max_steps=STEPS + 1), client=two_threads)
        assert checked_steps(tmp_path) == begun, "one attempt is enough"


@pytest.mark.process
def test_a_trainer_that_always_fails_stops_the_run_once(
    tmp_path: Path, two_threads: Client, caplog: pytest.LogCaptureFixture
) -> None:
    words = r"AttributeError: 'Buggy' object has no attribute 'totl'.* \(.*\.py:\d+: self\.totl"
    with made(tmp_path, Buggy) as study:
        for _ in range(2):
            with pytest.raises(ConfigurationError, match=f"fails in each trial of its .*{words}"):
                run(study, two_threads)
        assert {trial.state.name for trial in study.trials} == {"RUNNING"}, "no trial's fault"
        assert caplog.text == ""
        run(study, two_threads, check=False)
        assert {trial.state.name for trial in study.trials} == {"FAIL"}


@pytest.mark.process
def test_a_trial_that_fails_by_its_values_stops_nothing(
    tmp_path: Path, two_threads: Client
) -> None:
    with made(tmp_path, FailsByValue) as study:
        run(study, two_threads)
        assert {trial.state.name for trial in study.trials} == {"COMPLETE", "FAIL"}


@pytest.mark.process
def test_a_trial_that_the_trainer_refuses_stops_the_run(
    tmp_path: Path, two_threads: Client
) -> None:
    with made(tmp_path, Refusing) as study:
        with pytest.raises(ConfigurationError, match="Refusing refuses a trial of this run: the"):
            run(study, two_threads)
        assert study.summary()["steps_executed"] <= STEPS
    (tmp_path / "allowed").mkdir()
    with made(tmp_path / "allowed", Refusing) as study:
        run(study, two_threads, allow_failed_check=True)
        assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL"]


@pytest.mark.process
def test_a_misspelt_name_is_shown_once_with_its_line(
    tmp_path: Path, two_threads: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with made(tmp_path, Misspelt) as study, pytest.raises(ConfigurationError) as error:
        run(study, two_threads)
    assert re.fullmatch(
        "Misspelt refuses a trial of this run: unknown hyper-parameter 'lrr'; known: lr; did you "
        r"mean 'lr'\? \(test_first_check.py:\d+: self.rate = hp\[\"lrr\"\]\)",
        str(error.value),
    )
    assert caplog.text == ""


@pytest.mark.process
def test_a_function_with_an_untracked_state_stops_the_run(
    tmp_path: Path, one_worker: Client
) -> None:
    with made(tmp_path, untracked) as study:
        with pytest.raises(ConfigurationError, match=r"refuses .* call run\.track\(noise\)"):
            run(study, one_worker)
        assert {trial.state.name for trial in study.trials} <= {"RUNNING"}


@pytest.mark.process
def test_a_check_without_a_result_is_left_to_the_audits(
    tmp_path: Path, two_threads: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with made(tmp_path, Failing) as study:
        run(study, two_threads, audit=0.02)
    assert "Failing was not checked" in caplog.text
    assert "That is left to the audits; 'dasktune check' has no time limit" in caplog.text


@pytest.mark.process
def test_a_trainer_that_hangs_in_the_check_is_trained(
    tmp_path: Path,
    two_threads: Client,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(first_check, "FIRST_CHECK_SECONDS", 0.0)
    with made(tmp_path, Hanging) as study:
        run(study, two_threads)
        assert "Hanging was not checked: it was not done after 0 s" in caplog.text
        assert (study.summary()["steps_executed"], recorded(study)) == (UNIQUE, ([], 0))
    assert no_child_trains(tmp_path)


def no_child_trains(folder: Path) -> bool:
    """Return whether all processes of checks are gone."""
    pids = {int(line) for line in (folder / "log").read_text().split()} - {os.getpid()}
    return not any(map(psutil.pid_exists, pids))


@pytest.mark.process
def test_stop_ends_a_check_and_nothing_is_resumed(tmp_path: Path, two_threads: Client) -> None:
    with made(tmp_path, Hanging) as study:

        def stop_in_the_check() -> None:
            wait_until(lambda: checked_steps(tmp_path) > 0)
            assert study.stop()

        stopping = threading.Thread(target=stop_in_the_check)
        stopping.start()
        run(study, two_threads)
        stopping.join()
        assert recorded(study) == ([], 0)
        assert study.summary()["steps_executed"] <= STEPS
    assert no_child_trains(tmp_path)


PROGRAM = """
import sys
import dasktune as dt
from dasktune.errors import ConfigurationError
from tests.forgetful import Tally

class Walk(dt.Trainer):
    def build(self, hp):
        self.total, self.calls = 0.0, Tally(0)
    def setup(self, hp):
        self.lr = hp["lr"]
    def train(self):
        self.calls += 1
        self.total += self.lr * self.calls
    def evaluate(self):
        return {"loss": self.total}
    def state_dict(self):
        return {"total": self.total, **({"calls": int(self.calls)} if WHOLE else {})}
    def load_state_dict(self, state):
        self.total = state["total"]
        self.calls = Tally(state.get("calls", 0))

WHOLE = sys.argv[1] == "whole"

if __name__ == "__main__":
    study = dt.create_study(Walk, name="walk", storage=sys.argv[2], metric="loss")
    try:
        rates = [0.1, dt.sequences.Piecewise([0.1, 0.2], boundaries=[2])]
        study.optimize(dt.algos.Grid(dt.Space(lr=rates), max_steps=4), workers=1)
    except ConfigurationError as error:
        print(error)
    print(len(study.trials), study.summary()["steps_executed"] > 4)
"""


@pytest.mark.cluster
@pytest.mark.parametrize(("kind", "end"), [("whole", "2 True"), ("partial", "2 False")])
def test_a_trainer_of_a_script_is_checked(tmp_path: Path, kind: str, end: str) -> None:
    script = tmp_path / "walk.py"
    script.write_text(PROGRAM)
    done = run_forked(["python", script, kind, tmp_path / "store"], text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == end
    assert ("Walk must resume exactly" in done.stdout) == (kind == "partial")


def check_of(study: Study, device: str, ahead: KnownTrials | NewTuner) -> FirstCheck:
    return FirstCheck(
        study.study_config,
        seed=0,
        device=device,
        ahead=ahead,
        step_seconds=1.0,
        current=CurrentRun(),
    )


@pytest.mark.process
def test_each_run_holds_back_what_waits_for_the_check(tmp_path: Path) -> None:
    with Gate(tmp_path / "gate"), made(tmp_path, Gated) as study:
        checks = TrainerChecks(study.results, study.study_config, CurrentRun())
        ahead = beginning(dt.algos.Grid(SPACE, max_steps=STEPS))
        with checks.beside(ahead, None):
            part = CheckBeside(checks, lambda: None, lambda: None, None)
            for _ in range(2):  # the second run may train alone what the first one cannot merge
                part.use(lambda: None)
                assert [*part.turn(0.0)] == [StagesHeld(which="resumes")]
                assert [*part.turn(1.0)] == []


class Unasked(dt.algos.Grid):
    """Raises when it is asked."""

    def ask(self, capacity: int) -> Any:
        raise ZeroDivisionError("of the tuner")


def beginning(tuner: dt.algos.Tuner) -> NewTuner:
    return NewTuner(tuner=tuner, inputs={"objectives": 1}, most_steps=None)


def test_a_gpu_that_is_not_here_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with made(tmp_path, Logged) as study:
        outcome = check_of(study, "cuda", beginning(Unasked(SPACE, max_steps=STEPS))).result()
    assert outcome == NotChecked(reason="its stages train on a GPU, and this machine has none")


@pytest.mark.process
@pytest.mark.parametrize(
    ("passes", "text"), [(False, "was not checked"), (True, "was checked on the CPU alone")]
)
def test_check_is_for_the_gpus_of_the_workers(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    passes: bool,
    text: str,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with (
        LocalCluster(
            processes=False,
            n_workers=1,
            threads_per_worker=1,
            host="127.0.0.1",
            protocol="tcp://",
            dashboard_address="127.0.0.1:0",
            resources={"GPU": 1},
        ) as cluster,
        Client(cluster) as client,
        made(tmp_path, Logged) as study,
    ):
        if passes:
            study.record_check(True, "passed", device="cpu")
        before = recorded(study)
        run(study, client)
        assert recorded(study) == before, "a check on the CPU says nothing about these workers"
    reason = "its stages train on a GPU, and this machine has none"
    assert f"Logged {text}: {reason}" in caplog.text


@pytest.mark.parametrize(("gpus", "device"), [(0, "cpu"), (0.25, "cuda")])
def test_device_of_a_local_run_is_that_of_its_workers(gpus: float, device: str) -> None:
    assert device_of_run(None, gpus, Needs.of({})) == device


def test_a_machine_without_temporary_files_checks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = (CheckedTrial(sequences={"lr": dt.sequences.Constant(0.1)}, max_steps=STEPS),)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with made(tmp_path, Logged) as study:
        known = KnownTrials(trials=trials, requested=STEPS)
        outcome = check_of(study, "cpu", known).result()
    assert isinstance(outcome, NotChecked)
    assert outcome.reason.startswith("this machine cannot check it: [Errno 2] No such file")


def test_an_error_of_the_tuner_is_raised_again(tmp_path: Path) -> None:
    with made(tmp_path, Logged) as study, pytest.raises(ZeroDivisionError, match="of the tuner"):
        check_of(study, "cpu", beginning(Unasked(SPACE, max_steps=STEPS))).result()


def test_a_trial_of_one_step_cannot_be_checked(tmp_path: Path) -> None:
    with made(tmp_path, Logged) as study:
        tuner = dt.algos.Grid(SPACE, max_steps=1)
        known = trials_ahead(study.results, tuner, {"objectives": 1}, Limits())
        outcome = check_of(study, "cpu", known).result()
    assert outcome == NotChecked(reason="no trial with 2 steps or more is known yet")


@pytest.mark.parametrize(
    ("tuner", "limit", "requested"),
    [
        (dt.algos.Grid(SPACE, max_steps=STEPS), None, 2 * STEPS),
        (dt.algos.Grid(SPACE, max_steps=STEPS), 5, 5),
        (dt.algos.ASHA(SPACE, trials=40, max_steps=16, min_steps=2, brackets=[0]), None, 80),
    ],
)
def test_known_trials_count_the_requested_steps(
    tmp_path: Path, tuner: dt.algos.Tuner, limit: int | None, requested: int
) -> None:
    with made(tmp_path, Logged) as study:
        known = trials_ahead(study.results, tuner, {"objectives": 1}, Limits(steps=limit)).known()
    assert known.requested == requested
    assert tuner.ask(1), "the tuner itself was not asked"
    assert all(trial.max_steps == tuner.max_steps for trial in known.trials)


def test_known_trials_of_a_study_are_its_own(tmp_path: Path, two_threads: Client) -> None:
    with made(tmp_path, Logged) as study:
        run(study, two_threads, check=False)
        known = trials_ahead(study.results, dt.algos.Grid(SPACE, max_steps=9), {}, Limits()).known()
    assert known.requested == 2 * STEPS
    assert [trial.max_steps for trial in known.trials] == [STEPS, STEPS]
    assert sorted(trial.change for trial in known.trials) == [4, STEPS]


def test_checked_trial_without_a_change_has_its_end() -> None:
    lr = dt.sequences.Constant(0.1)
    assert CheckedTrial(sequences={"lr": lr}, max_steps=5).change == 5
