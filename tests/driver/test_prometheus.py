"""Figures of studies as Prometheus has them: counters last, gauges go with their run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from prometheus_client.parser import text_string_to_metric_families

import dasktune as dt
from dasktune._driver.prometheus import FAMILIES, MOST_STUDIES, NAME, Figures, serve
from dasktune._engine.timeouts import NO_HEARTBEAT_SECONDS, Waits
from dasktune.sequences import Constant
from tests.holding import wait_until
from tests.services import scheduler_in

STEPS, TRIALS, SLOTS = (
    next(one for one in FAMILIES if one.name == f"dasktune_{name}")
    for name in ("steps", "trials", "slots")
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def receive(figures: Figures, run: str, study: str = "s", **values: Any) -> None:
    ended = values.pop("ended", False)
    figures.receive({"study": study, "run": run, "figures": values, "ended": ended})


def test_counters_add_up_over_runs_and_gauges_show_the_last_run() -> None:
    figures = Figures(Clock())
    receive(figures, "a", steps=3, slots=2, trials={"RUNNING": 1})
    receive(figures, "a", steps=5, slots=4, trials={"COMPLETE": 1})
    assert dict(figures.samples(STEPS)) == {("s",): 5.0}
    assert dict(figures.samples(SLOTS)) == {("s",): 4.0}
    assert dict(figures.samples(TRIALS)) == {("s", "COMPLETE"): 1.0}
    receive(figures, "a", steps=6, slots=4, ended=True)
    receive(figures, "b", steps=10, slots=1)
    assert dict(figures.samples(STEPS)) == {("s",): 16.0}
    assert dict(figures.samples(SLOTS)) == {("s",): 1.0}
    receive(figures, "b", steps=10, slots=1, ended=True)
    assert dict(figures.samples(STEPS)) == {("s",): 16.0}
    assert dict(figures.samples(SLOTS)) == {}


def test_dead_driver_loses_its_gauges_and_keeps_its_counters() -> None:
    clock = Clock()
    figures = Figures(clock)
    receive(figures, "a", steps=3, slots=2)
    clock.now = NO_HEARTBEAT_SECONDS + 1
    assert dict(figures.samples(STEPS)) == {("s",): 3.0}
    assert dict(figures.samples(SLOTS)) == {}
    receive(figures, "b", steps=1, slots=7)
    assert dict(figures.samples(STEPS)) == {("s",): 4.0}
    assert dict(figures.samples(SLOTS)) == {("s",): 7.0}


@pytest.mark.parametrize(
    "odd",
    [
        None,
        [],
        {"study": 1, "run": "a", "figures": {}},
        {"study": "s", "run": "a", "figures": [1]},
        {"study": "s", "run": "a", "figures": {"steps": "many", "trials": 3, "slots": {"x": 1}}},
    ],
)
def test_what_is_odd_is_passed_over(odd: object) -> None:
    figures = Figures(Clock())
    figures.receive(odd)
    assert [list(figures.samples(one)) for one in FAMILIES] == [[]] * len(FAMILIES)


def test_samples_keep_only_the_most_recent_studies() -> None:
    figures = Figures(Clock())
    for number in range(MOST_STUDIES + 2):
        receive(figures, "a", study=str(number), steps=1)
    known = {study for (study,), _ in figures.samples(STEPS)}
    assert len(known) == MOST_STUDIES
    assert "0" not in known


def test_names_and_helps_are_as_prometheus_wants_them() -> None:
    for one in FAMILIES:
        assert one.name.startswith("dasktune_")
        assert not one.name.endswith("_total")  # which counters get
        assert one.help.endswith(".")
        assert one.label in ("", "state", "status")


def test_the_page_lists_them_all() -> None:
    page = (Path(__file__).parents[2] / "docs" / "observability.md").read_text()
    shown = set(re.findall(r"^\| `(dasktune_\w+)` +\| (\w+)", page, re.MULTILINE))
    assert shown == {
        (f"{one.name}_total", "counter") if one.is_counter else (one.name, "gauge")
        for one in FAMILIES
    }


class Count(dt.Trainer):
    def build(self, hp):
        self.at = 0.0

    def setup(self, hp):
        self.by = hp["by"]

    def train(self):
        self.at += self.by

    def evaluate(self):
        return {"loss": self.at}

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Scrape(dt.Callback):
    """Reads the metrics while the study runs, until they are as they must be."""

    def __init__(self, is_complete: Callable[[], bool]) -> None:
        self.is_complete = is_complete

    def on_report(self, study: Any, trial: dt.Trial, report: Any) -> None:
        if report.step == 1:
            wait_until(self.is_complete)


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


@pytest.mark.cluster
def test_scheduler_page_has_the_metrics_of_a_running_study(
    tmp_path: Path, two_threads: Client
) -> None:
    url = two_threads.dashboard_link.replace("/status", "/metrics")
    name = 'a "name" \\ and {more}'

    def samples() -> dict[tuple[str, str], float]:
        return {
            (sample.name, sample.labels.get("state", sample.labels.get("status", ""))): sample.value
            for family in text_string_to_metric_families(get(url))
            for sample in family.samples
            if sample.labels.get("study") == name
        }

    def is_complete() -> bool:
        during = samples()
        return during.get(("dasktune_slots", "")) == 2 and ("dasktune_trials", "RUNNING") in during

    study = dt.create_study(Count, name=name, storage=tmp_path, metric="loss")
    tuner = dt.algos.Grid(dt.Space(by=[Constant(0.5), Constant(0.25)]), max_steps=20)
    options = {"client": two_threads, "progress": False, "last_line": False}
    timeouts = dt.Timeouts(waits=Waits(heartbeat_seconds=0.0, heartbeat_share=1.0))
    study.optimize(tuner, callbacks=[Scrape(is_complete)], timeouts=timeouts, **options)
    study.close()
    after = samples()
    assert after["dasktune_steps_total", ""] == 40
    assert after["dasktune_stages_total", "trained"] >= 2
    assert ("dasktune_slots", "") not in after
    assert "# HELP dasktune_steps_total Steps trained" in get(url)


@pytest.mark.cluster
def test_the_page_is_there_whether_or_not_anything_is_served(two_threads: Client) -> None:
    assert serve(two_threads)
    assert serve(two_threads)  # a second time changes nothing
    page = get(two_threads.dashboard_link.replace("/status", "/metrics"))
    assert page.startswith("#")
    plugins: list[str] = two_threads.run_on_scheduler(
        lambda dask_scheduler: list(dask_scheduler.plugins)
    )
    assert plugins.count(NAME) == 1


@pytest.mark.process
@pytest.mark.cluster
def test_a_scheduler_without_dasktune_is_left_alone(tmp_path: Path) -> None:
    """Its interpreter does not find the package, as on a cluster of others."""
    hidden = tmp_path / "dasktune"
    hidden.mkdir()
    (hidden / "__init__.py").write_text("raise ImportError('not installed')")
    address_file = tmp_path / "scheduler.json"
    code = "from distributed.cli.dask_scheduler import main; main()"
    options = ["--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0"]
    command = [sys.executable, "-c", code, *options, "--scheduler-file", str(address_file)]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    log = tmp_path / "log"
    with log.open("w") as file:
        scheduler = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        with Client(scheduler_in(address_file), timeout=60) as client:
            assert not serve(client)
            names = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.plugins))
    finally:
        scheduler.terminate()
        scheduler.wait()
    assert NAME not in names
    assert "Traceback" not in log.read_text()
