"""The live page of a large study: the longest pause of a real browser, and the time of answers.

A study of 10,000 trials with 100 reports each is written into a database, without training. Then
the page is opened in Chromium and used as a reader does; the browser itself reports each task that
kept it busy for more than 50 ms.

    python benchmarks/dashboard.py --folder /tmp/large
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from figures import Figure, main

from dasktune.dashboard.process import served
from tests.dashboard.made_study import Made, made_database

PARTS = {
    "curves": {"curves"},
    "overview": {"overview", "trials"},
    "parameters": {"points", "importance"},
    "trials": {"overview", "trials"},
    "tree": {"tree"},
    "trial/4321": {"trial", "lineage"},
    "failures": {"overview"},
}
"""The parts in the order of visits, with the answers that each waits for."""
TRIALS, REPORTS = 10_000, 100
BOUND = 200.0
"""Milliseconds of the longest pause."""

MOST_WAIT = 1500.0
"""Milliseconds of the slowest answer: the reader sees the rest of the page meanwhile."""

PATIENCE = 30_000
"""Milliseconds after which a part that has not got its answers fails the benchmark."""

SETTLED = 3000
"""Milliseconds in which a part is drawn, once it has its answers."""

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
OBSERVE = """
window.tasks = [];
new PerformanceObserver((list) => list.getEntries().forEach((entry) => tasks.push(entry.duration)))
  .observe({ type: "longtask", buffered: true });
"""
TIMES = """performance.getEntriesByType("resource").filter((entry) => entry.name.includes("/api/"))
  .map((entry) => [entry.name.split("/api/")[1].split("/")[0], entry.duration])"""


def visit(page: Any, place: str) -> tuple[float, dict[str, float]]:
    """Return the longest task of a part of the page, and the slowest answer of each kind."""
    page.evaluate("tasks.length = 0; performance.clearResourceTimings()")
    page.evaluate(f"location.hash = {f'#/1/{place}'!r}")
    names = f"new Set({TIMES}.map(([name]) => name))"
    got = " && ".join(f"{names}.has({name!r})" for name in sorted(PARTS[place]))
    page.wait_for_function(f"() => {got}", timeout=PATIENCE)
    page.wait_for_timeout(SETTLED)
    if place == "trials":
        for share in (0.3, 0.9, 0.1):
            scroll = f"table => table.scrollTop = {share} * table.scrollHeight"
            page.locator(".table").evaluate(scroll)
            page.wait_for_timeout(300)
    answers: dict[str, float] = {}
    for name, milliseconds in page.evaluate(TIMES):
        answers[name] = max(milliseconds, answers.get(name, 0.0))
    return max(page.evaluate("tasks"), default=0.0), answers


def visits(file: Path, browser: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return the longest task of each part, of seeing it twice, and the slowest answers."""
    from playwright.sync_api import sync_playwright

    longest: dict[str, float] = {}
    slowest: dict[str, float] = {}
    with served(str(file)) as address, sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=browser, args=FLAGS)
        page = opened.new_page(viewport={"width": 1400, "height": 900})
        page.add_init_script(OBSERVE)
        began = time.perf_counter()
        page.goto(address)
        page.locator("#history canvas").first.wait_for()
        print(f"first plot after {time.perf_counter() - began:.1f} s", flush=True)
        page.wait_for_timeout(SETTLED)
        longest["start"] = max(page.evaluate("tasks"), default=0.0)
        for part in [*PARTS, *PARTS]:
            task, answers = visit(page, part)
            words = ", ".join(f"{name} {value:.0f}" for name, value in sorted(answers.items()))
            print(f"{part:12} {task:4.0f} ms; answers in ms: {words}", flush=True)
            longest[part] = max(task, longest.get(part, 0.0))
            slowest |= {name: max(value, slowest.get(name, 0.0)) for name, value in answers.items()}
        opened.close()
    return longest, slowest


def measure(short: bool, *, folder: Path | None) -> list[Figure]:
    """Write the study if it is missing, and measure its page."""
    place = folder or Path(tempfile.mkdtemp(prefix="dashboard-"))
    trials = 200 if short else TRIALS
    place.mkdir(parents=True, exist_ok=True)
    try:
        file = place / "dasktune.db"
        if not file.exists():
            sizes = Made(trials=trials, steps=REPORTS, fails_every=100, running=16, shared=False)
            made_database(place, large=sizes)
        longest, slowest = visits(file, shutil.which("chromium") or "chromium")
    finally:
        if folder is None:
            shutil.rmtree(place)
    note = f"{trials:,} trials of {REPORTS} reports"
    pauses = [
        Figure(name=f"longest pause: {part}", value=value, unit="ms", at_most=BOUND, note=note)
        for part, value in longest.items()
    ]
    answers = [
        Figure(name=f"slowest answer: {name}", value=value, unit="ms", at_most=MOST_WAIT, note=note)
        for name, value in slowest.items()
    ]
    return [*pauses, *answers]


if __name__ == "__main__":
    sys.exit(main("dashboard", measure, folder="folder for the database, which stays there"))
