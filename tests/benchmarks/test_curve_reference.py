"""The plain run that predictors are measured against predicts, and its benchmark runs."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from dasktune.algos.curves import Curve
from tests.forked import run_forked

pytestmark = pytest.mark.process

FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_the_short_version_times_both(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    command = [sys.executable, str(FOLDER / "curve_reference.py"), "--short", "--json", str(path)]
    done = run_forked(command, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = {one["name"]: one for one in json.loads(path.read_text())["figures"]}
    for points in (10, 40, 100):
        slow, fast = f"plain emcee, {points} points", f"CurveEnsemble, {points} points"
        ratio = figures[slow]["value"] / figures[fast]["value"]
        assert figures[f"faster, {points} points"]["value"] == pytest.approx(ratio)


def test_the_plain_run_goes_on_with_a_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    plain = importlib.import_module("curve_reference").PlainEnsemble(samples=20)
    x = np.arange(1.0, 21.0)
    known = Curve(
        steps=tuple(range(1, 21)),
        scores=tuple((0.8 - 0.6 / x).tolist()),
        max_steps=60,
        low=0.0,
        high=1.0,
    )
    found = plain.predict(known, (40, 60), seed=2)
    assert found == plain.predict(known, (40, 60), seed=2)
    assert found.medians == pytest.approx([0.785, 0.79], abs=0.03)
