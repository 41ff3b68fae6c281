"""Several drivers on one store: no step is trained twice when they can see each other."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dasktune.algos import Grid
from dasktune.algos.base import known_configurations
from dasktune.sequences import Sequence
from tests.forked import Forked
from tests.holding import Gate, wait_until

from .driver_process import follow, space

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
STEPS = 20
HELD = 15
"""Steps after which a driver's trainers are held in mid-stage."""

FIRST, SECOND = [0.1, 0.5], [0.5, 0.9]


class Drivers:
    """Starts drivers in one folder, and reads what they trained."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[Forked] = []
        self._gates: dict[str, Gate] = {}

    def start(self, name: str, gammas: list[float], **more: object) -> Forked:
        options = {
            "name": name,
            "gammas": gammas,
            "storage": str(self.folder / "store"),
            "database": str(self.folder / "studies.db"),
            "log": str(self.log(name)),
            "steps": STEPS,
            "hold": str(self.gate(name).path),
            "hold_after": HELD,
            "lease_seconds": 60.0,
            "checkpoint_every": None,
            "told_to_save": None,
            **more,
        }
        self.running.append(
            Forked(
                [sys.executable, "-m", "tests.driver.driver_process", json.dumps(options)],
                cwd=ROOT,
                text=True,
            )
        )
        return self.running[-1]

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def gate(self, name: str) -> Gate:
        """Return the gate that the trainers of a driver pass after `HELD` steps."""
        return self._gates.setdefault(name, Gate(self.folder / f"hold-{name}"))

    def trained(self, *names: str) -> Counter[str]:
        """Return how often each state was trained by drivers of these names."""
        logs = [self.log(name) for name in names]
        return Counter(
            line for log in logs if log.exists() for line in log.read_text().split("\n")[:-1]
        )

    def are_held(self, name: str) -> bool:
        """Whether both workers of a driver have come to `HELD`, by whatever stages."""
        states = self.trained(name).elements()
        return sum(state.startswith(f"{HELD} ") for state in states) >= 2

    def wait_until(self, condition: Callable[[], bool]) -> None:
        def holds() -> bool:
            assert all(driver.poll() in (None, 0) for driver in self.running)
            return condition()

        wait_until(holds)


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Drivers]:
    made = Drivers(tmp_path)
    yield made
    for driver in made.running:
        driver.kill()
        driver.communicate()


def result_of(driver: Forked) -> dict[str, Any]:
    out, errors = driver.communicate(timeout=120)
    assert driver.returncode == 0, errors
    document: dict[str, Any] = json.loads(out)
    return document


def rates(gammas: list[float]) -> list[Sequence]:
    grid = Grid(space(gammas), max_steps=STEPS)
    return [configuration.sequences["lr"] for configuration in known_configurations(grid)]


def expected(gammas: list[float]) -> list[dict[str, float]]:
    """Return the metric by step of each trial, trained alone."""
    metrics = []
    for lr in rates(gammas):
        x, by_step = 0.0, {}
        for step in range(STEPS):
            x = follow(x, lr(step))
            by_step[str(step + 1)] = x
        metrics.append(by_step)
    return metrics


def unique(*all_gammas: list[float]) -> int:
    """Return how many states the trials of several drivers have, counted one by one."""
    paths = {
        tuple(lr(step) for step in range(length + 1))
        for gammas in all_gammas
        for lr in rates(gammas)
        for length in range(STEPS)
    }
    return len(paths)


def check(document: dict[str, Any], gammas: list[float]) -> None:
    metrics = document["metrics"]
    assert [metrics[number] for number in sorted(metrics, key=int)] == expected(gammas)


@pytest.mark.parametrize("is_common", [True, False], ids=["one database", "store alone"])
def test_two_drivers_train_each_step_once(drivers: Drivers, is_common: bool) -> None:
    databases = [str(drivers.folder / ("all.db" if is_common else f"{at}.db")) for at in (0, 1)]
    with drivers.gate("first"):  # or it may have ended while the second looks around
        first = drivers.start("first", FIRST, database=databases[0], hold_after=0)
        second = drivers.start("second", SECOND, database=databases[1])
        drivers.wait_until(lambda: drivers.trained("second").total() > 0)
    results = [result_of(first), result_of(second)]
    check(results[0], FIRST)
    check(results[1], SECOND)
    trained = drivers.trained("first", "second")
    repeated = sum(result["summary"]["steps_repeated"] for result in results)
    assert len(trained) == unique(FIRST, SECOND)
    assert trained.total() - len(trained) == repeated, "what was late is reported"
    assert repeated <= 0.03 * len(trained)
    assert trained.total() == sum(result["summary"]["steps_executed"] for result in results)


def test_a_driver_that_comes_later_goes_on_from_what_there_is(drivers: Drivers) -> None:
    with drivers.gate("first"):
        first = drivers.start("first", FIRST)
        drivers.wait_until(lambda: drivers.are_held("first"))
        second = drivers.start("second", SECOND)
        drivers.wait_until(lambda: drivers.trained("second").total() > 0)
    results = [result_of(first), result_of(second)]
    check(results[0], FIRST)
    check(results[1], SECOND)
    trained = drivers.trained("first", "second")
    repeated = sum(result["summary"]["steps_repeated"] for result in results)
    assert len(trained) == unique(FIRST, SECOND)
    assert trained.total() - len(trained) == repeated, "what was late is reported"
    assert repeated <= 2 * STEPS


def test_a_stage_that_begins_inside_another_drivers_waits(drivers: Drivers) -> None:
    """The first trains 0-80; the second needs branches at 6, which is behind it, and at 60."""
    common = {"steps": 80, "rates": [0.1]}
    ahead = {"milestones": [100], "hold_after": 10, "told_to_save": 60, "checkpoint_every": 8}
    with drivers.gate("first"):
        first = drivers.start("first", [0.5], **common, **ahead)
        drivers.wait_until(lambda: drivers.trained("first").total() == 10)
        second = drivers.start("second", [0.5], **common, milestones=[6, 60])
        drivers.wait_until(lambda: drivers.trained("second").total() == 80)
    results = [result_of(first), result_of(second)]
    trained = drivers.trained("first", "second")
    assert len(trained) == 80 + 74 + 20
    repeated = sum(result["summary"]["steps_repeated"] for result in results)
    assert trained.total() - len(trained) == repeated == 6, "the steps behind, and no others"


def test_a_driver_that_died_is_waited_for_as_long_as_its_lease(drivers: Drivers) -> None:
    with drivers.gate("first"):
        first = drivers.start("first", FIRST, lease_seconds=2.0)
        drivers.wait_until(lambda: drivers.are_held("first"))
        first.kill()
        first.communicate()
    drivers.running.remove(first)
    died_at = drivers.trained("first").total()
    second = drivers.start("second", SECOND, lease_seconds=2.0)
    check(result_of(second), SECOND)
    again = drivers.start("first", FIRST)
    check(result_of(again), FIRST)
    trained = drivers.trained("first", "second")
    assert len(trained) == unique(FIRST, SECOND)
    lost = trained.total() - len(trained)
    assert lost <= min(died_at, 2 * STEPS), "at most what its two workers had not saved"
