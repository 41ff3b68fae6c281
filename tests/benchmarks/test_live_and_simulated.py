"""Live runs and simulations of them are compared: the same steps, and times of the same kind."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.forked import run_forked

FOLDER = Path(__file__).parents[2] / "benchmarks"

STEP_SECONDS = 0.8 * 0.08
"""The shortest step of any trial, which is slept."""


@pytest.mark.cluster
@pytest.mark.slow
def test_the_simulator_trains_the_steps_of_the_live_run(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    command = [sys.executable, str(FOLDER / "live_and_simulated.py"), "--short", "--json", path]
    done = run_forked(command, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = {one["name"]: one for one in json.loads(path.read_text())["figures"]}
    assert figures["Default, 2 workers: steps, simulated over live"]["value"] == 1
    for policy in ("Default", "Bandit", "POP"):
        total = figures[f"{policy}, 2 workers: total time, means off by"]
        live, simulated = map(float, re.findall(r"([\d.]+) s ", total["note"]))
        # Neither takes less than a step; a machine that stands still adds to one.
        assert min(live, simulated) >= STEP_SECONDS, total["note"]
        ratio = simulated / live
        assert total["value"] == pytest.approx(abs(ratio - 1), abs=0.05 * max(1, ratio))
