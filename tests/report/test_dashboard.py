"""optuna-dashboard over the snapshot of a study, in a real browser."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import pytest
from optuna.storages import RDBStorage

from dasktune._engine.trials import TrialRecord
from dasktune.mirror import optuna_study
from dasktune.mirror.storages import write_snapshot
from dasktune.sequences import Constant
from dasktune.space import Float
from dasktune.types import Objective, TrialState

pytestmark = pytest.mark.browser

LOSS = Objective.single("loss", "minimize")
NAME = "digits & <b>more</b>"
PATIENCE = 30_000
"""Milliseconds that the page may take to show something."""


class Threaded(ThreadingMixIn, WSGIServer):
    """Serves each connection in a thread, because a browser opens unused connections."""


class Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *values: object) -> None:
        """Log no requests."""


def trial(number: int, state: TrialState) -> TrialRecord:
    rate = (number + 1) / 8
    return TrialRecord(
        number=number,
        tuner=0,
        local=number,
        params={"rate": rate},
        sequences={"rate": Constant(rate)},
        max_steps=4,
        state=state,
        steps=4,
        values=(rate,),
        message="it broke" if state is TrialState.FAIL else "",
        point={"rate": rate},
        domains={"rate": Float(0.0, 1.0).to_json()},
    )


STATES = ("COMPLETE", "PRUNED", "FAIL", "RUNNING")


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Return where the dashboard is served, on this machine only."""
    from optuna_dashboard import wsgi

    records = [trial(number, TrialState(state)) for number, state in enumerate(STATES)]
    seen = ((one, {step: {"loss": one.params["rate"]} for step in (1, 2)}) for one in records)
    write_snapshot(optuna_study(NAME, LOSS, seen), tmp_path / "optuna.db", "ours")
    storage = RDBStorage(f"sqlite:///{tmp_path / 'optuna.db'}")
    server = make_server("127.0.0.1", 0, wsgi(storage), Threaded, Quiet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/dashboard"
    server.shutdown()
    thread.join()
    server.server_close()
    storage.engine.dispose()


def test_the_dashboard_shows_the_trials_of_a_snapshot(address: str, chromium: str) -> None:
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    flags += ["--disable-background-networking", "--disable-sync"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        shown = browser.new_page(viewport={"width": 1400, "height": 900})
        shown.set_default_timeout(PATIENCE)
        failed: list[str] = []
        shown.on("pageerror", lambda error: failed.append(str(error)))
        shown.goto(address)
        shown.get_by_text(NAME).first.wait_for()
        shown.goto(f"{address}/studies/1/trials")
        shown.get_by_text("4 Trials", exact=True).wait_for()
        shown.get_by_text("Trial 0 (trial_id=1)").wait_for()
        best = lines(shown.inner_text("body"))
        shown.get_by_text("Trial 2", exact=True).click()
        shown.get_by_text("Trial 2 (trial_id=3)").wait_for()
        broken = lines(shown.inner_text("body"))
        browser.close()
    for number, state in enumerate(("Complete", "Pruned", "Fail", "Running")):
        assert best[best.index(f"Trial {number}") + 1] == state
    # Values and reports of the best one, and what became of the one that failed.
    assert {"0.125", "1 0.125", "2 0.125", "rate 0.125", "steps 4", "tuner 0"} <= {*best}
    assert 'sequences {"rate": "Constant(0.125)"}' in best
    assert {"error it broke", "rate 0.375", "2 0.375"} <= {*broken}
    assert failed == []


def lines(text: str) -> list[str]:
    """Return the lines of a page that say something."""
    return [line.strip() for line in text.replace("\t", " ").splitlines() if line.strip()]
