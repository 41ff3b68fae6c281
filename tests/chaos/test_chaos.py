"""`python -m tests.chaos`: real processes are killed, and all is as it would be without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.chaos.__main__ import app, open_left
from tests.chaos.session import Case, Terms, chaos

pytestmark = pytest.mark.cluster

TERMS = Terms(kills=3, gap=0.8, seconds=120.0, silence=2.0)


def test_chaos_of_right_code_finds_no_difference() -> None:
    found = chaos(Case.builtin("asha", "pace=0.35"), 2, TERMS, open_left)
    assert found.problems == ()
    assert found.folder is None
    assert all(found.kills.values()), found.course.done  # a worker, the scheduler and the driver
    assert found.findings is not None
    assert found.findings.states > 20
    assert found.findings.metrics == found.findings.unique > 1000


FORGETFUL = '''
import numpy as np

import dasktune as dt
from dasktune.sequences import MultiStep
from tests.chaos.builtin import Descent


class Forgetful(Descent):
    """Saves no speed, and says wrongly that this is harmless: else its resumes are refused."""

    harmless_differences = ("trainer.speed",)

    def state_dict(self):
        return {name: one for name, one in super().state_dict().items() if name != "speed"}

    def load_state_dict(self, state):
        super().load_state_dict({**state, "speed": np.zeros_like(state["weight"])})


def study(pace=0.5):
    return dt.create_study(
        Forgetful, name="mine", storage="mine", metric="loss", config={"pace": pace},
        load_if_exists=True,
    )


def tuner(steps=60):
    lr = [MultiStep(0.1, [at], gamma=0.5) for at in (10, 20, 30)]
    return dt.algos.Grid(dt.Space(lr=lr, momentum=[0.5, 0.9]), max_steps=steps)
'''


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.fixture
def forgetful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a study file whose trainer does not resume exactly."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "forgetful.py").write_text(FORGETFUL)
    return tmp_path / "forgetful.py"


@pytest.mark.slow
def test_a_trainer_that_does_not_resume_exactly_is_found_out(forgetful: Path) -> None:
    found = command(
        forgetful.name, "--config", "steps=80", "--runs", 1, "--kills", 2, "--gap", 1.0,
        "--only", "kill-worker",
    )  # fmt: skip
    assert found.exit_code == 1
    assert found.stdout.startswith("seed 0, forgetful.py: failed; ")
    assert "0 of 1 runs" in found.stdout
    assert "is not that of a lone run" in found.stderr
    assert "kill-worker, worker-" in found.stderr
    assert "another run of this seed may go otherwise" in found.stderr
    folder = Path(found.stderr.partition("all that is left: ")[2].strip())
    study, tuner = open_left(folder / "chaos_study.py")
    assert (study.name, tuner.max_steps, len(study.trials)) == ("mine", 80, 6)
    assert Path(study.store.url) == folder / "store"
    study.close()
    assert {one.name for one in folder.glob("worker-*.log")} >= {"worker-0.0.log", "worker-1.0.log"}
    assert not Path("mine").exists()


def test_what_hangs_is_told_with_what_every_process_was_doing(forgetful: Path) -> None:
    found = command(
        forgetful, "--config", "pace=50", "--runs", 1, "--kills", 0, "--limit", 4, "--json"
    )
    assert found.exit_code == 1
    run = json.loads(found.stdout)[0]
    assert run["states"] == 0
    problem = run["problems"][0]
    assert problem.startswith("it did not end within 4 s")
    for name in ("scheduler.0", "worker-0.0", "worker-1.0", "driver.0"):
        doing = problem.partition(f"--- {name}\n")[2].partition("\n--- ")[0]
        assert "most recent call first" in doing


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "kill-worker,flood"), "unknown fault 'flood'; known: cut-worker"),
        (("--tuner", "bohb"), "unknown tuner 'bohb'; known: asha, grid, pbt, sha"),
        (("forgetful.py", "--tuner", "asha"), "--tuner is for our own study"),
        (("missing.py",), "no such file: 'missing.py'"),
        (("forgetful.py", "--config", "pase=1"), "unknown config key 'pase'"),
    ],
)
def test_a_wrong_use_is_refused(
    forgetful: Path, arguments: tuple[object, ...], message: str
) -> None:
    found = command(*arguments)
    assert found.exit_code == 2
    assert message in found.stderr
