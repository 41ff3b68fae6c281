"""`dasktune simulate` and `dasktune preview` on workers of several classes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dasktune.cli.pools import PoolOptions
from dasktune.simulate import Trace
from tests.study_folder import working_in

from .conftest import command

STUDY = """
import dasktune as dt


class Counting(dt.Trainer):
    def build(self, hp):
        self.steps = 0

    def setup(self, hp): ...

    def train(self):
        self.steps += 1

    def evaluate(self):
        return {"loss": 1 / self.steps}

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


def study(resource="GPU"):
    return dt.create_study(Counting, name="x", metric="loss", needs={resource: 1})


def tuner():
    deep = dt.Branch("deep", dt.Space(layers=[5, 6, 7]), needs={"tags": "a100"})
    return dt.algos.Grid(dt.Space(model=[deep, "flat"]), max_steps=4)
"""

POOL = ("--workers", "fast=1", "--workers", "slow=2")
OFFERS = ("--offers", "fast:GPU=1:tags=A100,lab3", "--offers", "slow:GPU=1")


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path) -> Iterator[None]:
    """Work in a folder with a study file and the trace of its four trials, 1 second a step."""
    (tmp_path / "needy.py").write_text(STUDY)
    models = [*({"model": "deep", "layers": layers} for layers in (5, 6, 7)), {"model": "flat"}]
    curves = [[4.0, 3.0, 2.0, float(number)] for number in range(4)]
    Trace.from_arrays({"loss": curves}, configurations=models).save(tmp_path / "t.npz")
    with working_in(tmp_path):
        yield


def simulated(*arguments: str) -> dict[str, object]:
    done = command("simulate", "t.npz", "--tuner", "grid", "--orders", "1", *arguments, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def seconds(*arguments: str) -> float:
    (row,) = simulated(*arguments)["tuners"]  # type: ignore[misc]
    return row["seconds"]["high"]  # type: ignore[index]


def test_simulate_workers_by_class_are_one_pool() -> None:
    found = simulated(*POOL, "--speed", "slow=0.5")
    assert (found["workers"], found["classes"]) == ([3], {"fast": 1, "slow": 2})
    assert (found["speeds"], found["offers"]) == ({"slow": 0.5}, None)
    plain = simulated("--workers", "2", "--workers", "3")
    assert (plain["workers"], plain["classes"]) == ([2, 3], None)


def test_simulate_speed_of_a_class_multiplies_recorded_times() -> None:
    assert seconds("--workers", "slow=2") == 8.0
    assert seconds("--workers", "slow=2", "--speed", "slow=0.25") == 32.0
    shown = command("simulate", "t.npz", "--tuner", "grid", *POOL)
    assert shown.stdout.startswith("on 3 workers (1 x fast, 2 x slow):\n")
    note = "all classes are equally fast: the trace does not tell them apart"
    assert note in shown.stdout
    assert note not in command("simulate", "t.npz", "--tuner", "grid", "--workers", "3").stdout
    known = command("simulate", "t.npz", "--tuner", "grid", *POOL, "--speed", "slow=0.5")
    assert note not in known.stdout


def test_simulate_needs_of_a_study_file_decide_the_class() -> None:
    # The three deep trials need the one fast worker, 4 s each; the flat one has a slow worker.
    assert seconds(*POOL, *OFFERS) <= 8.0
    assert seconds(*POOL, *OFFERS, "--needs-of", "needy.py") == 12.0
    assert not Path("runs").exists()
    one = ("--needs-of", "needy.py", "--config", "resource=TPU")
    done = command("simulate", "t.npz", "--tuner", "grid", *POOL, *OFFERS, *one)
    assert done.exit_code == 1
    assert "no worker has TPU=1; workers: fast (GPU=1, tags a100 lab3)" in done.stderr


def test_preview_of_classes_counts_only_workers_that_fit() -> None:
    def bound(*arguments: str) -> float:
        done = command("preview", "needy.py", *arguments, "--json")
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout)["bound_steps"]

    assert bound("--workers", "3") == pytest.approx(16 / 3)
    assert bound(*POOL, *OFFERS) == 12.0
    assert not Path("runs").exists()


def test_preview_refuses_needs_that_no_class_meets() -> None:
    done = command("preview", "needy.py", *POOL, "--offers", "fast:GPU=1", "--offers", "slow:GPU=1")
    assert done.exit_code == 1
    assert "no worker has GPU=1, tag a100; no worker has a tag 'a100'" in done.stderr
    without = command("preview", "needy.py", *POOL)
    assert "no worker has GPU=1; workers: fast (neither amounts nor tags)" in without.stderr


def test_pool_options_take_names_of_real_classes() -> None:
    name = "EPYC 7763: 8=2x4 cores"
    options = PoolOptions(workers=[f"{name}=25"], offers=[f"{name}:cores=8:tags=cpu"])
    (pool,) = options.pools(1)
    assert pool == {name: 25}
    assert options.offers_of(pool) == {name: {"cores": 8.0, "tags": ["cpu"]}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "0"], "--workers must be a number from 1 to 1,000,000"),
        (["--workers", "fast=0"], "or such a number by class as in fast=2, got 'fast=0'"),
        (["--workers", "fast=1e3"], "got 'fast=1e3'"),
        (["--workers", "9" * 5000], "--workers must be a number from 1 to 1,000,000"),
        (["--workers", "=2"], "a class of workers must be a name, such as 'H100 80 GB', got ''"),
        (["--workers", "a\nb=2"], r"a class of workers must be a name, such as 'H100 80 GB', got"),
        (["--workers", "2", "--workers", "a=2"], "numbers by class alone, got both"),
        (["--workers", "a=2", "--workers", "a=3"], "must name a class once, got 'a' 2 times"),
        (["--workers", "2", "--offers", "a:GPU=1"], "--offers must come with classes of workers"),
        ([*POOL, "--offers", "fats:GPU=1"], "class of workers with offers 'fats'; known: fast, sl"),
        ([*POOL, "--offers", "fast:GPU"], "needs must be finite numbers > 0 by name, got {'GPU'"),
        ([*POOL, "--offers", "fast:tags=a b"], "tags of needs must be words, got ['a b']"),
        ([*POOL, *OFFERS, *OFFERS], "--offers must name a class once, got 'fast' 2 times"),
    ],
)
@pytest.mark.parametrize("start", [["preview", "needy.py"], ["simulate", "t.npz", "--tuner=grid"]])
def test_wrong_pools_are_refused_in_few_lines(
    start: list[str], arguments: list[str], message: str
) -> None:
    done = command(*start, *arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) <= 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "2", "--speed", "a=2"], "--speed must come with classes of workers"),
        ([*POOL, "--speed", "slow"], "--speed must be as in slow=0.25, got 'slow'"),
        ([*POOL, "--speed", "slow=0"], "the speed of class 'slow' must be a number > 0"),
        ([*POOL, "--speed", "slow=1e-320"], "a number > 0, from 1e-06 to 1e+06, got 1e-320"),
        ([*POOL, "--speed", "slow=nan"], "the speed of class 'slow' must be a number > 0"),
        ([*POOL, "--speed", "slow=x"], "the speed of class 'slow' must be a number > 0"),
        ([*POOL, "--speed", "slo=2"], "class of workers with a speed 'slo'; known: fast, slow"),
    ],
)
def test_wrong_speeds_are_refused(arguments: list[str], message: str) -> None:
    done = command("simulate", "t.npz", "--tuner", "grid", *arguments)
    assert (done.exit_code, message in done.stderr) == (2, True), done.stderr


def test_preview_takes_one_pool_and_one_file_with_classes() -> None:
    several = command("preview", "needy.py", "--workers", "2", "--workers", "3")
    assert "--workers must be one number here, got 2" in several.stderr
    files = command("preview", "needy.py", "needy.py", *POOL)
    assert "classes of workers must come with one file, got several" in files.stderr
    assert (several.exit_code, files.exit_code) == (2, 2)
