"""The benchmark of SHADHO's setting: its bounds by hand, and its figures in the short version."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.forked import run_forked

FOLDER = Path(__file__).parents[2] / "benchmarks"
MODULES = ("shadho", "svc_times", "hardware", "figures")


@pytest.fixture
def shadho(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return the module of the benchmark, for one test only."""
    monkeypatch.syspath_prepend(FOLDER)
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("shadho")
    for name in MODULES:
        sys.modules.pop(name, None)


def test_ten_machines_are_three_two_and_one_waves(shadho: Any) -> None:
    assert [shadho.waves(kind, 16) for kind in shadho.CORES] == [3, 2, 1]
    assert [shadho.waves(kind, 4) for kind in shadho.CORES] == [3, 3, 3]


def test_program_of_waves_alike_is_that_of_a_hand(shadho: Any) -> None:
    cores = dict.fromkeys(shadho.KERNELS, 16)
    seconds = shadho.least_seconds({"rbf": 600.0, "poly": 500.0}, cores, 1)
    assert seconds == pytest.approx(1100 / (1 / 3 + 1 / 2 + 1))


def test_placement_gains_nothing_where_waves_are_alike(shadho: Any) -> None:
    measured = shadho.Measured()
    alike, unlike = shadho.SETTINGS.values()
    assert shadho.endless_gain(measured, alike) == pytest.approx(1.0)
    assert shadho.endless_gain(measured, unlike) > 1.05


def test_measured_configuration_has_its_own_task(shadho: Any) -> None:
    measured = shadho.Measured()
    document = json.loads(shadho.MEASURED.read_text())
    assert len(document["rows"]) == sum(shadho.KERNELS.values())
    for row in document["rows"]:
        task = measured.task(row)
        assert task.loss == (shadho.FAILED if row["loss"] is None else row["loss"])
        assert task.seconds == row["seconds"] * 25 ** measured.exponents[row["kernel"]]
    assert measured.best == min(row["loss"] for row in document["rows"] if row["loss"] is not None)


def test_exponents_are_those_of_the_rows(shadho: Any) -> None:
    document = json.loads(shadho.MEASURED.read_text())
    exponents = sys.modules["svc_times"].exponents
    assert exponents(document["rows"]) == document["exponents"]
    quadratic = [
        {"kernel": kernel, "seconds": 4.0, "more_seconds": 25.0} for kernel in shadho.KERNELS
    ]
    assert set(exponents(quadratic).values()) == {2.0}


def test_measurement_has_the_loss_of_its_digits(shadho: Any) -> None:
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    x, y = digits.data / 16.0, digits.target
    images = len(x) - sys.modules["svc_times"].JUDGED
    row = sys.modules["svc_times"].measure(x, y, {"kernel": "linear", "C": 1.0}, images)
    assert row["seconds"] > 0
    assert 0 <= row["loss"] <= 1
    values = {"kernel": "poly", "C": 1.0, "gamma": 1e300, "r": 0.0, "degree": 15}
    assert sys.modules["svc_times"].measure(np.abs(x), y, values, images)["loss"] is None


@pytest.mark.process
def test_short_version_has_figures_of_every_rule(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    command = [sys.executable, str(FOLDER / "shadho.py"), "--short", "--json", str(path)]
    done = run_forked(command, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = {each["name"]: each for each in json.loads(path.read_text())["figures"]}
    assert len(figures) == 4 + 2 * (2 + 4 * 2 + 3)
    for setting in ("waves alike", "kernels scale unlike (not the paper's)"):
        bound = figures[f"tasks an hour of the best plan over first come, {setting}"]["value"]
        for rule in ("placement without ranks", "forest and placement"):
            gain = figures[f"tasks an hour over first come, {rule}, {setting}"]["value"]
            assert 0.7 < gain <= bound + 1e-9
