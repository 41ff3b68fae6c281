"""The report: what it holds of a large study, and how it works in a browser without a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dasktune._dashboard import saved
from dasktune._dashboard.saved import answers_of, write_report
from dasktune._dashboard.study_view import StudyView
from dasktune._results.results import StudyResults
from dasktune._study.memory import StudyMemory
from dasktune.graph.attempts import DispatchOptions
from dasktune.report.notebook import page_html
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.database.database import Database

from .made_study import Made, made_database

PARTS = ("overview", "curves", "parameters", "trials", "tree", "failures", "costs", "trial/9")
SHOWN = "#states, .chart canvas, .grid-row, .table canvas, #failed, #workers, #error-of-trial"
"""What is there, in one part or another, when it is drawn."""


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    file = made_database(
        tmp_path_factory.mktemp("made"), made=Made(trials=40, fails_every=10, running=2)
    )
    with closing(Database(file, create=False)) as opened:
        yield opened


@pytest.fixture(scope="module")
def study(database: Database, tmp_path_factory: pytest.TempPathFactory) -> StudyResults:
    (row,) = database.studies()
    store = CheckpointStore(str(tmp_path_factory.mktemp("store")))
    return StudyResults(StudyMemory(row, database, store, DispatchOptions(merge=True)))


@pytest.fixture(scope="module")
def report(study: StudyResults, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(study, tmp_path_factory.mktemp("report") / "page.html")


def test_report_of_a_large_study_says_what_is_left_out(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    (row,) = database.studies()
    view = StudyView(row, database)
    assert answers_of(view, [view])["left_out"] == ""
    for name, most in {"MOST_LISTED": 30, "MOST_PAGES": 5, "MOST_FAILED": 2}.items():
        monkeypatch.setattr(saved, name, most)
    answers = answers_of(view, [view])
    assert answers["left_out"] == (
        "In this report the 30 best of 40 trials are listed and 7 trials of 40 have pages, "
        "the best and some that failed; the command dasktune dashboard shows all."
    )
    assert len(answers["trials/1?since=0"]["rows"]) == answers["tree/1"]["count"] == 30
    best = [entry.number for entry in sorted(view.table.entries.values(), key=view.table.rank)]
    pages = {int(key.partition("=")[2]) for key in answers if key.startswith("trial/")}
    assert pages == {*best[:5], 9, 19}


def test_default_path_of_a_report_names_no_parent_folder(
    study: StudyResults, tmp_path: Path
) -> None:
    (tmp_path / "studies").mkdir()
    store = CheckpointStore(str(tmp_path / "studies" / ".." / "runs"))
    store.check()
    opened = StudyResults(StudyMemory(study.row, study.database, store, study.options))
    assert write_report(opened) == (tmp_path / "runs").resolve() / f"report-{study.name}.html"


@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_report_shows_all_parts_without_a_server(
    report: Path, open_page: Callable[..., Any], width: int, scheme: str
) -> None:
    with open_page(report.as_uri(), width=width, scheme=scheme) as page:
        requested: list[str] = []
        page.on("request", lambda request: requested.append(request.url))
        for part in PARTS:
            page.evaluate("document.getElementById('main').replaceChildren()")
            page.evaluate(f"location.hash = '#/1/{part}'; dispatchEvent(new Event('hashchange'))")
            page.locator(SHOWN).first.wait_for()
            assert page.locator("#error").count() == 0, part
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert [url for url in requested if not url.startswith(("blob:", "data:"))] == []
        page.locator("#logs, #stages").first.wait_for()
        assert page.get_by_text("Runs now").count() == 0


@pytest.mark.browser
def test_report_in_a_notebook_follows_its_links(
    report: Path, open_page: Callable[..., Any]
) -> None:
    with open_page("about:blank") as page:
        page.set_content(page_html(report.read_text()))
        frame = page.frame_locator("iframe")
        frame.get_by_role("link", name="Trials").click()
        frame.locator(".grid-row").nth(9).click()
        frame.locator("#error-of-trial").get_by_text("too high").first.wait_for()


@pytest.mark.browser
def test_report_without_bokeh_says_how_to_get_plots(
    study: StudyResults,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    open_page: Callable[..., Any],
) -> None:
    monkeypatch.setattr(saved, "bokeh_scripts", dict)
    report = write_report(study, tmp_path / "page.html")
    with open_page(report.as_uri()) as page:
        page.locator("#history").get_by_text("pip install 'dasktune[dashboard]'").wait_for()
        page.get_by_role("link", name="Trials").click()
        page.locator(".grid-row").first.wait_for()
