"""The story of a trial: what was decided about it, and which stages trained it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from distributed import Client
from typer.testing import CliRunner

import dasktune as dt
from dasktune.cli import app
from tests.toy_trainers import Adding

pytestmark = pytest.mark.cluster


@pytest.fixture
def store(tmp_path: Path, two_threads: Client) -> Path:
    """Return the store of two studies: one of trials that share their first two steps."""
    rates = [dt.sequences.MultiStep(0.1, milestones=[2], gamma=gamma) for gamma in (0.5, 2.0)]
    for name in ("branches", "other"):
        opened = dt.create_study(Adding, name=name, storage=str(tmp_path / "store"), metric="loss")
        with closing(opened) as study:
            tuner = dt.algos.Grid(dt.Space(lr=rates), max_steps=4)
            study.optimize(tuner, client=two_threads, progress=False, last_line=False)
    return tmp_path / "store"


def told(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["status", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_story_has_decisions_and_stages(store: Path) -> None:
    story = told(str(store), "--study", "branches", "--trial", "0")
    first, *rest = story.splitlines()
    assert first.startswith("trial 0: COMPLETE after 4 of 4 steps")
    assert any("extend trial 0 to step 4" in line for line in rest)
    assert any("the report of trial 0 at step 4 (loss 0.3)" in line for line in rest)
    stages = [line for line in rest if line.startswith("  steps ")]
    assert [line.split(",")[0] for line in stages] == ["  steps 0 to 2", "  steps 2 to 4"]


def test_story_of_a_trial_names_no_other(store: Path) -> None:
    story = told(str(store), "--study", "branches", "--trial", "1")
    assert "trial 0" not in story


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--trial", "0"), "has several: branches, other"),
        (("--trial", "9", "--study", "other"), "trial must be 0 to 1, got 9"),
        (("--trial", "0", "--study", "third"), "unknown study 'third'"),
        (("--trial", "0", "--json"), "no --json"),
    ],
)
def test_what_has_no_story_is_refused(
    store: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = CliRunner().invoke(app, ["status", str(store), *arguments])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
