"""The benchmark of unlike GPUs: its bound by hand, and its figures on made-up throughputs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dasktune.graph.keys import root_key
from dasktune.graph.plan import SearchPlan
from dasktune.sequences import Constant

SPEEDS = {"k80": 1.0, "p100": 2.0, "v100": 3.0}


@pytest.fixture
def hardware(load: Any) -> Any:
    return load("hardware")


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


def test_second_study_begins_with_the_speeds_of_the_first(hardware: Any) -> None:
    times = {"a": {"x": 1.0, "y": 10.0}, "b": {"x": 1.0, "y": 1.5}}
    case = hardware.Case(times=times, pool={"x": 1, "y": 1}, tuner="random", trials=20, seed=0)
    speeds = hardware.kept_by(case)
    assert (speeds.is_known, speeds.kept) == (True, []), "nothing is measured in this study yet"
    plan = SearchPlan(root_key("second", 0))
    plan.register(0, {"model": Constant("b"), "batch_size": Constant(0)}, 1)
    assert speeds.seconds_per_step(plan.paths[0].leaf, "y") == pytest.approx(1.5)


@pytest.mark.process
def test_rules_are_ordered_by_what_they_know(run: Any, throughputs: Path) -> None:
    figures = run("hardware", "--data", str(throughputs))
    start = "makespan over the bound, random search of 7 families, "
    ratios = {rule: figures[f"{start}{rule}"]["value"] for rule in ("first come", "learned")}
    assert ratios["learned"] < ratios["first come"]
    for rule in ("known", "second study"):
        assert 1 <= figures[f"{start}{rule}"]["value"] < ratios["first come"]


# -------------------------------------------------------------------------------- SHADHO


@pytest.fixture
def svc_times(load: Any) -> Any:
    return load("svc_times")


def test_measured_configuration_has_its_own_seconds(load: Any, svc_times: Any) -> None:
    shadho = load("shadho")
    assert list(shadho.WAVES.values()) == [3, 2, 1]
    document = json.loads(svc_times.MEASURED.read_text())
    assert len(document["rows"]) == sum(svc_times.KERNELS.values())
    measured = shadho.Measured()
    for row in document["rows"]:
        scaled = row["seconds"] * 25 ** document["exponents"][row["kernel"]]
        assert measured.seconds(row) == scaled


def test_exponents_are_those_of_the_rows(svc_times: Any) -> None:
    document = json.loads(svc_times.MEASURED.read_text())
    assert svc_times.exponents(document["rows"]) == document["exponents"]
    quadratic = [
        {"kernel": kernel, "seconds": 4.0, "more_seconds": 25.0} for kernel in svc_times.KERNELS
    ]
    assert set(svc_times.exponents(quadratic).values()) == {2.0}


def test_measurement_has_the_loss_of_its_digits(svc_times: Any) -> None:
    digits = load_digits()
    x, y = digits.data / 16.0, digits.target
    images = len(x) - svc_times.JUDGED
    row = svc_times.measure(x, y, {"kernel": "linear", "C": 1.0}, images)
    assert row["seconds"] > 0
    assert 0 <= row["loss"] <= 1
    values = {"kernel": "poly", "C": 1.0, "gamma": 1e300, "r": 0.0, "degree": 15}
    assert svc_times.measure(np.abs(x), y, values, images)["loss"] is None


@pytest.mark.process
def test_placement_gains_no_more_than_the_best_plan(run: Any) -> None:
    figures = run("shadho")
    gain = figures["tasks an hour over first come"]["value"]
    assert 0.7 < gain <= figures["tasks an hour of the best plan over first come"]["value"] + 1e-9
