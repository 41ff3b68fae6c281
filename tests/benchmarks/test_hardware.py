"""The benchmark of unlike GPUs: its bound by hand, and its figures on made-up throughputs."""

from __future__ import annotations

import gzip
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
MODULES = ("hardware", "figures")
SPEEDS = {"k80": 1.0, "p100": 2.0, "v100": 3.0}


@pytest.fixture
def hardware(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return the module of the benchmark, for one test only."""
    monkeypatch.syspath_prepend(FOLDER)
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("hardware")
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def throughputs(hardware: Any, tmp_path: Path) -> Path:
    """Return a file in which every second model is ten times as slow on a K80."""
    path = tmp_path / "throughputs.csv.gz"
    lines = ["gpu,consolidated,job,batch_size,num_gpus,steps_per_sec"]
    for number, name in enumerate([*hardware.FAMILIES, hardware.TRANSFORMER]):
        job, _, size = name.partition(" ")
        for gpu, speed in SPEEDS.items():
            slow = 10 if gpu == "k80" and number % 2 else 1
            lines += [f"{gpu},1,{job},{size},1,{speed / slow}", f"{gpu},1,{job},{size},2,99"]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


def test_times_are_those_of_one_gpu(hardware: Any, throughputs: Path) -> None:
    times = hardware.times_of(throughputs)
    assert times["CycleGAN"] == {"k80": 120.0, "p100": 60.0, "v100": 40.0}
    assert times["LM 20"]["k80"] == 1200.0
    assert len(times) == 7


def test_bound_of_two_models_is_that_of_a_hand(hardware: Any) -> None:
    times = {"a": {"x": 1.0, "y": 10.0}, "b": {"x": 10.0, "y": 1.0}}
    case = hardware.Case(times=times, pool={"x": 1, "y": 2}, tuner="asha", trials=1, seed=0)
    assert hardware.bound(case, {"a": 100, "b": 200}) == pytest.approx(100.0)
    # 10 of 100 steps of "a" on "y" take 100 s there, as 90 do on "x"; one step is the longest path.
    assert hardware.bound(case, {"a": 100, "b": 0}) == pytest.approx(100 / (1 + 2 / 10))


@pytest.mark.process
def test_short_version_needs_no_more_than_the_file(throughputs: Path, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    command = [sys.executable, str(FOLDER / "hardware.py"), "--short", "--json", str(path)]
    done = subprocess.run([*command, "--data", str(throughputs)], capture_output=True, timeout=250)
    assert done.returncode == 0, done.stderr
    figures = {each["name"]: each["value"] for each in json.loads(path.read_text())["figures"]}
    start = "makespan over the bound, random search of 7 families, "
    assert 1 <= figures[f"{start}known"] < figures[f"{start}one class"]
    assert figures[f"{start}learned"] < figures[f"{start}first come"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert (refused.returncode, "--data must be the path" in refused.stderr) == (1, True)
