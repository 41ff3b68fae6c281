"""The report page for handmade plans and trials, small and very large."""

from __future__ import annotations

import csv
import math
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dasktune.engine.trials import TrialRecord, trial_of
from dasktune.graph.plan import SearchPlan
from dasktune.report.curves import curves_of
from dasktune.report.gantt import IDLE_LABEL
from dasktune.report.page import FAILURES, LISTED, Content, ranking, render, write_report
from dasktune.report.tree_layout import MOST_BARS
from dasktune.results.summary import summarise, unique_steps
from dasktune.sequences import Constant, MultiStep, Piecewise
from dasktune.storage.database.database import Database
from dasktune.storage.database.schema import StageRow
from dasktune.types import Direction, Sequences, TrialState

HOSTILE = (
    "</title></style></script><script>alert(\"1\")</script><img src=x onerror='alert(2)'>&amp;"
)
TRACEBACK = f'Traceback (most recent call last):\n  File "a.py"\nValueError: {HOSTILE}'
SHARED: Mapping[int, Sequences] = {
    0: {"lr": Constant(0.1)},
    1: {"lr": Piecewise([0.1, 0.2], boundaries=[4])},
    2: {"lr": Piecewise([0.1, 0.2, 0.3], boundaries=[4, 6])},
}
"""Of 10 steps: 0-4 shared by all, then 4-10 alone, 4-6 shared by two, and 6-10 twice alone."""

SHADOWED = "scroll => getComputedStyle(scroll).backgroundAttachment.startsWith('local')"
"""Whether a shadow shows that there is more beside."""

NODES, UNIQUE = 5, 4 + 6 + 2 + 4 + 4


class Page(HTMLParser):
    """The elements of a page as a browser would see them, and the text below ids and tags."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self._section = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open.append(tag)
        if tag == "section":
            self._section = dict(attrs).get("id") or ""

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open.pop() != tag:
                pass
        if tag == "section":
            self._section = ""

    def handle_data(self, data: str) -> None:
        for place in {*self._open, f"#{self._section}"}:
            self.texts.setdefault(place, []).append(data)

    def text(self, place: str) -> str:
        """Return all text below a tag, or in the section with an id, with single spaces."""
        return re.sub(r"\s+", " ", "".join(self.texts.get(place, []))).strip()

    def count(self, tag: str, look: str = "") -> int:
        """Return how many elements have a tag and, if given, a class."""
        return sum(
            one == tag and (not look or look in (attributes.get("class") or "").split())
            for one, attributes in self.elements
        )

    def table(self) -> list[list[str]]:
        """Return the cells of the trials that are listed."""
        body = self.source.partition("<tbody>")[2].partition("</tbody>")[0]
        rows = re.findall(r"<tr>(.*?)</tr>", body, flags=re.DOTALL)
        cells = [re.findall(r"<td[^>]*>(.*?)</td>", row, flags=re.DOTALL) for row in rows]
        return [[re.sub(r"<[^>]+>", "", cell).strip() for cell in row] for row in cells]


def record(
    number: int, sequences: Sequences, value: float | None = None, **more: Any
) -> TrialRecord:
    fields: dict[str, Any] = {"state": TrialState.COMPLETE, "params": {}, "steps": 10, **more}
    return TrialRecord(
        number=number,
        tuner=0,
        local=number,
        sequences=sequences,
        max_steps=10,
        values=None if value is None else (value,),
        **fields,
    )


def planned(records: Sequence[TrialRecord], *, metric: str = "loss") -> SearchPlan:
    """Return a plan in which every step was trained; the metric is 1 / step."""
    plan = SearchPlan("0" * 32)
    for one in records:
        plan.register(one.number, one.sequences, one.steps)
    for node in plan:
        node.metrics |= {step: {metric: 1 / step} for step in range(node.start + 1, node.stop + 1)}
        node.checkpoints[node.stop] = None
    return plan


def content(
    records: Sequence[TrialRecord],
    plan: SearchPlan | None = None,
    *,
    name: str = "by hand",
    metric: str = "loss",
    direction: Direction = Direction.MINIMIZE,
    executed: int | None = None,
    repeated: int = 0,
    audited: int = 0,
    stages: Sequence[StageRow] = (),
) -> Content:
    made = planned(records, metric=metric) if plan is None else plan
    numbered = {one.number: one for one in records}
    unique = unique_steps(made, {one.number: one.steps for one in records})
    summary = summarise(
        made,
        numbered,
        steps_executed=unique if executed is None else executed,
        steps_repeated=repeated,
        steps_audited=audited,
        wall_seconds=75.0,
        worker_seconds=7325.0,
        best_value=None,
    )
    return Content(
        name=name,
        metric=metric,
        direction=direction,
        trials=[trial_of(made, one) for one in records],
        summary=summary,
        plan=made,
        stages=stages,
        written=datetime(2020, 2, 3, 4, 5, tzinfo=UTC),
    )


def three(values: Sequence[float | None] = (0.5, 0.25, 0.75)) -> list[TrialRecord]:
    return [record(i, SHARED[i], value) for i, value in enumerate(values)]


def attempt(number: int, worker: str, status: str, begin: float, end: float | None) -> StageRow:
    return StageRow(
        study_id=1,
        attempt=f"attempt-{number}",
        key=f"{number:032x}",
        start=0,
        stop=4,
        worker=worker,
        status=status,
        started=begin,
        ended=end,
        steps=4,
        repeated=0,
    )


def test_page_table_shows_devices_where_several_train_a_trial() -> None:
    first, *others = three()
    assert "devices</button>" not in render(content([first, *others]))
    source = render(content([replace(first, devices=((0, 1), (4, 2))), *others]))
    assert "devices</button>" in source
    assert "1, 2 from step 4</td>" in source


def test_page_head_shows_study_saving_and_best_trial() -> None:
    page = Page(render(content(three())))
    assert page.texts["title"][0] == "by hand: report"
    assert page.text("h1") == "by hand"
    assert f"Trained 67% of the steps asked for ({UNIQUE} of 30)." in page.text("header")
    best = page.text("#")
    assert "best loss (minimize) 0.25 trial 1, step 10 lr" in best
    assert "Piecewise([0.1, 0.2], boundaries=[4])" in page.text("dd")
    assert "trials 3 3 complete" in best
    assert "steps trained 67% of those asked for; merge rate 1.50" in best
    assert "worker time 2 h 2 min in 1 min 15 s of wall time" in best


def test_the_best_value_depends_on_the_direction() -> None:
    page = Page(render(content(three(), direction=Direction.MAXIMIZE)))
    assert "best loss (maximize) 0.75 trial 2" in page.text("#")
    assert [row[0] for row in page.table()] == ["2", "0", "1"]


def test_page_costs_are_steps_with_bars() -> None:
    page = Page(render(content(three(), executed=24, repeated=4)))
    table = re.sub(r"<[^>]+>", " ", page.source.partition('"amounts">')[2].partition("</tab")[0])
    assert re.findall(r"(\d+)\s*$", table, flags=re.MULTILINE) == ["30", "20", "24", "4", "0"]
    widths = re.findall(r'style="width:([\d.]+)%"', page.source)
    assert [float(one) for one in widths] == pytest.approx([100, 66.667, 80, 13.333, 0])
    assert "Trained 80% of the steps asked for (24 of 30, 4 repeated)." in page.text("header")


def test_page_costs_of_checks_have_a_bar_of_their_own() -> None:
    page = Page(render(content(three(), executed=24, audited=60)))
    table = re.sub(r"<[^>]+>", " ", page.source.partition('"amounts">')[2].partition("</tab")[0])
    assert re.findall(r"(\d+)\s*$", table, flags=re.MULTILINE) == ["30", "20", "24", "0", "0", "60"]
    assert "Trained 80% of the steps asked for (24 of 30)." in page.text("header")


def test_page_costs_above_the_request_fit_their_bars() -> None:
    page = Page(render(content(three(), executed=60, repeated=40)))
    widths = [float(one) for one in re.findall(r'style="width:([\d.]+)%"', page.source)]
    assert max(widths) == 100
    assert "Trained 200% of" in page.text("header")


def test_tree_bar_shows_steps_trials_and_values_of_its_node() -> None:
    page = Page(render(content(three())))
    assert page.count("g", "bar-stage") == NODES
    assert page.count("g", "more-stage") == 0
    tree = page.text("#tree")
    assert "5 stages." in tree
    assert "steps 0-4, trained 3 trials: 0, 1, 2 lr = 0.1 key " in tree
    assert "steps 4-6, trained 2 trials: 1, 2 lr = 0.2 key " in tree
    assert "steps 6-10, trained 1 trial: 2 lr = 0.3 key " in tree
    assert "#1 0.25" in tree


def test_tree_untrained_steps_are_hollow() -> None:
    plan = planned(three())
    hollow = plan.nodes_of(2)[-1]
    hollow.metrics.clear()
    hollow.checkpoints.clear()
    part = plan.nodes_of(0)[-1]
    part.checkpoints.clear()
    part.metrics = {step: part.metrics[step] for step in (5, 6, 7)}
    page = Page(render(content(three(), plan)))
    legend = 1
    assert page.count("rect", "todo") == 2 + legend
    assert "steps 6-10, not trained" in page.text("#tree")
    assert "steps 4-10, trained to step 7" in page.text("#tree")


def test_curves_draw_each_step_once_and_connect_branches() -> None:
    plan = planned(three())
    curves = curves_of(plan, "loss")
    assert len(curves) == NODES
    steps = [step for curve in curves for step, _ in curve.points]
    joints = NODES - 1  # every curve but the first begins with its parent's last point
    assert len(steps) == UNIQUE + joints
    first, *rest = sorted(curves, key=lambda curve: curve.points[0])
    assert [step for step, _ in first.points] == [1, 2, 3, 4]
    assert sorted(curve.points[0][0] for curve in rest) == [4, 4, 6, 6]
    legend = 1
    assert Page(render(content(three(), plan))).count("path", "faint") == NODES + legend


def test_curves_skip_nan_and_infinity() -> None:
    plan = planned(three())
    plan.nodes_of(0)[0].metrics[2] = {"loss": math.nan}
    plan.nodes_of(0)[0].metrics[3] = {"loss": math.inf}
    points = [point for curve in curves_of(plan, "loss") for point in curve.points]
    assert all(math.isfinite(value) for _, value in points)
    source = render(content(three((math.nan, -math.inf, 0.75)), plan))
    drawn = source.partition("<main>")[2].partition("<script>")[0]
    assert not re.search(r'(?: d|x|y|width|height)="[^"]*(?:nan|inf)', drawn)


def test_ranking_skips_failed_trials_and_infinite_values() -> None:
    values = {"lr": Constant(0.1)}
    records = [
        record(0, values, math.nan),
        record(1, values, 0.5),
        record(2, values, 0.1, state=TrialState.FAIL, message="no"),
        record(3, values, 0.5),
        record(4, values, -math.inf),
        record(5, values, 0.2, state=TrialState.PRUNED),
        record(6, values, None, state=TrialState.RUNNING),
    ]
    trials = content(records).trials
    assert [one.number for one in ranking(trials, Direction.MINIMIZE)] == [5, 1, 3]
    assert [one.number for one in ranking(trials, Direction.MAXIMIZE)] == [1, 3, 5]


def test_page_table_shows_best_trials_with_plots() -> None:
    records = [
        record(i, {"lr": Constant(1 + i), "b": Constant(64)}, i / 100) for i in range(LISTED + 5)
    ]
    records[4].values, records[4].state = None, TrialState.FAIL
    records[3].sequences = {"lr": MultiStep(1.0, milestones=[5], gamma=0.5)}
    page = Page(render(content(records)))
    assert "The first 1,000 of 1,005 trials, the best first." in page.text("#trials")
    rows = page.table()
    assert [row[0] for row in rows] == [str(i) for i in range(LISTED + 1) if i != 4]
    assert rows[1][1:] == ["0.01", "2", "64", "10", "complete"]
    assert rows[3][2:4] == ["MultiStep(1.0, milestones=[5], gamma=0.5)", "—"]
    assert page.count("path", "spark") == 1


def test_page_table_lists_trials_without_a_value_last() -> None:
    records = three((None, 0.25, 0.75))
    records[0].state = TrialState.FAIL
    page = Page(render(content(records)))
    assert "All 3 trials, the best first." in page.text("#trials")
    assert [row[:2] for row in page.table()] == [["1", "0.25"], ["2", "0.75"], ["0", "—"]]
    assert page.table()[-1][-1] == "failed"


def test_page_shows_results_before_how_they_came() -> None:
    stages = [attempt(1, "tcp://10.0.0.1:1", "trained", 100.0, 110.0)]
    source = render(content(three(), stages=stages))
    sections = re.findall(r'<section id="(\w+)"', source)
    assert sections == ["trials", "curves", "tree", "workers"]


def test_page_folds_a_tree_in_which_nothing_is_shared() -> None:
    folded = "<details><summary>2 stages. No two trials share a stage."
    alone = [record(i, {"lr": Constant(i)}, 0.5) for i in range(2)]
    assert folded in render(content(alone))
    assert "<details>" not in render(content(three()))


def test_page_failures_with_one_traceback_are_grouped() -> None:
    values = {"lr": Constant(0.1)}
    bad = {"state": TrialState.FAIL, "steps": 4}
    records = [
        record(0, values, 0.5),
        *(record(i, values, traceback=TRACEBACK, message="short", **bad) for i in (1, 2)),
        record(3, values, message="out of memory", **bad),
    ]
    page = Page(render(content(records)))
    assert "3 failed, in 2 ways." in page.text("#failures")
    assert page.count("details") == 2
    assert "".join(page.texts["pre"]) == f"{TRACEBACK}out of memory"
    assert f"ValueError: {HOSTILE} 2 trials: 1, 2" in page.text("summary")


def test_page_counts_the_failures_left_out() -> None:
    values = {"lr": Constant(0.1)}
    records = [
        record(i, values, state=TrialState.FAIL, message=f"error {i}", steps=4)
        for i in range(FAILURES + 5)
    ]
    page = Page(render(content(records)))
    assert page.count("details") == FAILURES
    told = f"{FAILURES + 5} failed, in {FAILURES + 5} ways; the first {FAILURES} are shown."
    assert told in page.text("#failures")
    assert "no trial has a finite value yet" in page.text("#")


def test_attempts_lie_in_the_row_of_their_worker() -> None:
    stages = [
        attempt(1, "tcp://10.0.0.1:1", "trained", 100.0, 110.0),
        attempt(2, "tcp://10.0.0.2:2", "lost", 100.0, 104.0),
        attempt(3, "tcp://10.0.0.2:2", "failed", 105.0, 108.0),
        attempt(4, "tcp://10.0.0.2:2", "running", 109.0, None),
    ]
    page = Page(render(content(three(), stages=stages)))
    words = page.text("#workers")
    assert "3 attempts on 2 workers." in words
    assert "10.0.0.1:1" in words
    bars = [one for tag, one in page.elements if tag == "rect" and "attempt" in str(one)]
    places = {one["class"]: (float(one["x"] or 0), one["y"]) for one in bars}
    trained, lost, failed = (places[f"attempt {look}"] for look in ("k2", "k5", "k1"))
    assert len(bars) == 3
    assert trained[0] == lost[0] < failed[0]
    assert trained[1] != lost[1] == failed[1]


def test_idle_times_that_lie_close_have_one_label() -> None:
    crowded = [attempt(i, "w", "trained", 100.0 * i, 100.0 * i + 1) for i in range(1, 40)]
    source = render(content(three(), stages=crowded))
    assert source.count("<title>idle 1 min 39 s<") == 38
    labels = [float(x) for x in re.findall(r'<text x="([\d.]+)"[^>]*>idle', source)]
    assert len(labels) > 2
    assert all(b - a >= IDLE_LABEL for a, b in pairwise(labels))


def test_page_of_an_empty_study_says_so() -> None:
    page = Page(render(content([])))
    assert "Nothing was trained." in page.text("header")
    assert "no trial has a finite value yet" in page.text("#")
    assert "0 stages." in page.text("#tree")
    assert "No trial has begun yet." in page.text("#trials")
    assert {"#curves", "#workers", "#failures"}.isdisjoint(page.texts)


def test_page_escapes_text_of_every_source() -> None:
    sequences = {HOSTILE: Constant(HOSTILE)}
    changing = {HOSTILE: Piecewise([HOSTILE, "x"], boundaries=[4])}
    records = [
        record(0, sequences, 0.5),
        record(1, changing, 0.4),
        record(2, changing, state=TrialState.FAIL, traceback=TRACEBACK),
    ]
    stages = [attempt(1, HOSTILE, HOSTILE, 100.0, 101.0)]
    page = Page(render(content(records, name=HOSTILE, metric=HOSTILE, stages=stages)))
    plain = Page(render(content(three(), stages=[attempt(1, "w", "trained", 100.0, 101.0)])))
    assert page.count("script") == 1
    assert page.texts["script"] == plain.texts["script"]
    assert {tag for tag, _ in page.elements} <= {tag for tag, _ in plain.elements} | {
        *("pre", "details", "summary", "code")
    }
    assert not [key for _, one in page.elements for key in one if key.startswith("on")]
    for place in ("title", "h1", "dt", "th", "td", "pre", "#tree", "#curves", "#workers"):
        assert HOSTILE in page.text(place), place
    assert repr(changing[HOSTILE]) in page.text("dd")


def test_the_page_needs_no_other_file() -> None:
    page = Page(render(content(three())))
    links = [one[key] for _, one in page.elements for key in ("src", "href") if key in one]
    assert links == ["data:,"]
    assert "@import" not in page.source
    assert set(re.findall(r"url\(([^)]*)\)", page.source)) == {"#dt-frame"}
    assert "http" not in page.source


def test_page_escapes_surrogates(tmp_path: Path) -> None:
    shown = content([record(0, {"lr": Constant(0.1)}, state=TrialState.FAIL, message="a\udcffb")])
    with closing(Database("sqlite://")) as database:
        study = SimpleNamespace(
            name=shown.name,
            metric=shown.metric,
            direction=shown.direction,
            trials=shown.trials,
            plan=shown.plan,
            summary=lambda: shown.summary,
            stages=list,
            tuners=[],
            database=database,
        )
        path = write_report(study, tmp_path / "new" / "folder" / "page.html")
    assert r"a\udcffb" in path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def huge() -> tuple[Content, str, float]:
    """Give 10,000 trials that branch off over and over, their page, and how long it took."""
    records = []
    for i in range(10_000):
        milestones = [2 + i % 10, 20 + i // 10 % 10, 40 + i // 100 % 10, 60 + i // 1000]
        lr = MultiStep(0.1, milestones=milestones, gamma=0.5)
        records.append(record(i, {"lr": lr, "b": Constant(64)}, value=i / 7, steps=100))
    made = content(records)
    began = time.thread_time()  # other processes' turns do not count
    return made, render(made), time.thread_time() - began


@pytest.mark.slow
def test_ten_thousand_trials_make_a_small_page_in_seconds(huge: tuple[Content, str, float]) -> None:
    made, source, seconds = huge
    assert len(list(made.plan)) > 10_000
    assert len(source.encode()) < 2_000_000
    assert seconds < 20


@pytest.mark.slow
def test_page_of_ten_thousand_trials_says_what_is_left_out(
    huge: tuple[Content, str, float],
) -> None:
    made, source, _ = huge
    page, nodes = Page(source), len(list(made.plan))
    assert page.count("g", "bar-stage") == MOST_BARS
    told = f"{nodes:,} stages, the {MOST_BARS} that most trials share one by one, "
    assert f"{told}the other {nodes - MOST_BARS:,} put together" in page.text("#tree")
    assert page.text("text").count(" stages") == 0, "there is no room for labels"
    hidden = re.findall(r"<title>([\d,]+) stages? put together, steps", source)
    assert sum(int(one.replace(",", "")) for one in hidden) == nodes - MOST_BARS
    assert "the stages that fewest trials share are left out" in page.text("#curves")
    assert "The first 1,000 of 10,000 trials, the best first." in page.text("#trials")


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_on_a_phone_sorts_columns_and_shows_touched_marks(
    tmp_path: Path, chromium: str, scheme: str
) -> None:
    from playwright.sync_api import sync_playwright

    long = "a_name_that_is_far_too_long_for_the_width_of_a_phone_and_has_no_spaces"
    changing = Piecewise([0.1, 0.2], boundaries=[4])
    records = [
        record(i, {"batch_size": Constant(size), "momentum": changing, long: changing}, i / 10)
        for i, size in enumerate([128, 64, 1024])
    ]
    file = tmp_path / "page.html"
    file.write_text(render(content(records, name=long)), encoding="utf-8")
    said: list[str] = []
    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    flags += ["--disable-background-networking", "--disable-sync"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        shown = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme=scheme)
        shown.on("console", lambda message: said.append(message.text))
        shown.on("pageerror", lambda error: said.append(str(error)))
        shown.goto(file.as_uri())
        assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
        lines = "all => all.map(one => Math.round(one.getBoundingClientRect().height / 19.5))"
        batch_size, momentum, wrapped = shown.locator("dt").evaluate_all(lines)
        assert (batch_size, momentum) == (1, 1)
        assert wrapped > 1

        assert shown.locator(".scroll:has(.trials)").evaluate(SHADOWED)
        shown.locator(".trials th", has_text="batch_size").click()
        numbers = shown.locator(".trials tbody tr td:first-child").all_inner_texts()
        assert numbers == ["1", "0", "2"], "64, 128, 1024: by size, not by the alphabet"

        shown.get_by_label("Filter").fill("complete 102")
        assert shown.locator("#shown").inner_text() == "1 shown"
        with shown.expect_download() as saved:
            shown.get_by_role("button", name="CSV").click()
        with saved.value.path().open(newline="") as rows:
            (line,) = csv.DictReader(rows)
        assert (line["trial"], line["batch_size"]) == ("2", "1024")
        assert line["momentum"] == repr(changing)

        shown.locator("#tree summary").click()
        assert shown.locator("#tip").is_hidden()
        shown.locator(".bar-stage rect").first.hover()
        assert "steps 0-10, trained" in shown.locator("#tip").inner_text()

        page, ink = shown.locator("body").evaluate(
            "body => [getComputedStyle(body).backgroundColor, getComputedStyle(body).color]"
        )
        brightness = [sum(map(int, re.findall(r"\d+", one)[:3])) for one in (page, ink)]
        assert (brightness[0] > brightness[1]) == (scheme == "light")
        browser.close()
    assert said == []
