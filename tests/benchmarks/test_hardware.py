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

from dasktune.graph.keys import root_key
from dasktune.graph.plan import SearchPlan
from dasktune.sequences import Constant

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


def test_vision_models_are_those_of_all_classes(hardware: Any, tmp_path: Path) -> None:
    path = tmp_path / "timm.csv.gz"
    lines = ["hardware,model,mode,samples_per_sec,img_size"]
    for kind, speed in (("cpu_i9_10940x", 2), ("rtx3090", 40), ("rtx4090", 80)):
        lines += [f"{kind},net,infer,{speed},224", f"{kind},net,train,1,224"]
    lines += ["rtx3090,other,infer,9,224"]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    expected = {"cpu_i9_10940x": 1200.0, "rtx3090": 60.0, "rtx4090": 30.0}
    assert hardware.timm_times(path) == {"net@224": expected}


def test_second_study_begins_with_the_speeds_of_the_first(hardware: Any) -> None:
    times = {"a": {"x": 1.0, "y": 10.0}, "b": {"x": 1.0, "y": 1.5}}
    case = hardware.Case(times=times, pool={"x": 1, "y": 1}, tuner="random", trials=20, seed=0)
    speeds = hardware.kept_by(case)
    assert (speeds.is_known, speeds.kept) == (True, []), "nothing is measured in this study yet"
    plan = SearchPlan(root_key("second", 0))
    plan.register(0, {"model": Constant("b"), "batch_size": Constant(0)}, 1)
    assert speeds.seconds_per_step(plan.paths[0].leaf, "y") == pytest.approx(1.5)


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
    assert 1 <= figures[f"{start}second study"] < figures[f"{start}one class"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert (refused.returncode, "--data must be the path" in refused.stderr) == (1, True)
