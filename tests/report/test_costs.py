"""The part about costs and workers, and the picture of the stage tree, of handmade plans."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from typing import Any

import pytest

from dasktune._driver.audit_notes import AuditFigures
from dasktune._engine.trials import TrialRecord, trial_of
from dasktune._results.summary import summarise, unique_steps
from dasktune.graph.known import Measured
from dasktune.graph.plan import SearchPlan
from dasktune.report.costs import Content, ranking, render
from dasktune.report.tree_svg import draw_tree
from dasktune.sequences import Constant, Piecewise
from dasktune.types import Direction, Sequences, TrialState

SHARED: Mapping[int, Sequences] = {
    0: {"lr": Constant(0.1)},
    1: {"lr": Piecewise([0.1, 0.2], boundaries=[4])},
    2: {"lr": Piecewise([0.1, 0.2, 0.3], boundaries=[4, 6])},
}
"""Of 10 steps: 0-4 shared by all, then 4-10 alone, 4-6 shared by two, and 6-10 twice alone."""

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
        for step in range(node.start + 1, node.stop + 1):
            node.metrics.add(step, {metric: 1 / step})
        node.checkpoints.add(node.stop)
    return plan


def content(
    records: Sequence[TrialRecord],
    *,
    executed: int | None = None,
    repeated: int = 0,
    checked: int = 0,
    audited: int = 0,
) -> Content:
    made = planned(records)
    unique = unique_steps(made, {one.number: one.steps for one in records})
    summary = summarise(
        made,
        {one.number: one for one in records},
        steps_executed=unique if executed is None else executed,
        steps_repeated=repeated,
        steps_audited=checked + audited,
        audits=AuditFigures(steps=audited),
        wall_seconds=75.0,
        worker_seconds=7325.0,
        best_value=None,
    )
    return Content(summary=summary, stages=())


def drawn(plan: SearchPlan) -> Page:
    """Return the picture of the stage tree of a plan."""
    return Page(f'<section id="tree">{draw_tree(plan)}</section>')


def three(values: Sequence[float | None] = (0.5, 0.25, 0.75)) -> list[TrialRecord]:
    return [record(i, SHARED[i], value) for i, value in enumerate(values)]


def test_page_costs_are_steps_with_bars() -> None:
    page = Page(render(content(three(), executed=24, repeated=4)))
    table = re.sub(r"<[^>]+>", " ", page.source.partition('"amounts">')[2].partition("</tab")[0])
    assert re.findall(r"(\d+)\s*$", table, flags=re.MULTILINE) == ["30", "20", "24", "4", "0"]
    widths = re.findall(r'style="width:([\d.]+)%"', page.source)
    assert [float(one) for one in widths] == pytest.approx([100, 66.667, 80, 13.333, 0])
    words = page.text("p")
    assert "Trained 80% of the steps asked for (24 of 30, 4 repeated); merge rate 1.50." in words
    assert "2 h 2 min of worker time in 1 min 15 s of wall time." in words


def test_page_costs_have_bars_of_checks_and_audits() -> None:
    page = Page(render(content(three(), executed=24, checked=18, audited=60)))
    table = re.sub(r"<[^>]+>", " ", page.source.partition('"amounts">')[2].partition("</tab")[0])
    amounts = re.findall(r"(\d+)\s*$", table, flags=re.MULTILINE)
    assert amounts == ["30", "20", "24", "0", "0", "18", "60"]
    assert "Trained 80% of the steps asked for (24 of 30); merge rate" in page.text("p")


def test_page_costs_above_the_request_fit_their_bars() -> None:
    page = Page(render(content(three(), executed=60, repeated=40)))
    widths = [float(one) for one in re.findall(r'style="width:([\d.]+)%"', page.source)]
    assert max(widths) == 100
    assert "Trained 200% of" in page.text("p")


def test_tree_bar_shows_steps_trials_and_values_of_its_node() -> None:
    page = drawn(planned(three()))
    assert page.count("g", "bar-stage") == NODES
    assert page.count("g", "more-stage") == 0
    tree = page.text("#tree")
    assert "steps 0-4, trained 3 trials: 0, 1, 2 lr = 0.1 key " in tree
    assert "steps 4-6, trained 2 trials: 1, 2 lr = 0.2 key " in tree
    assert "steps 6-10, trained 1 trial: 2 lr = 0.3 key " in tree


def test_tree_untrained_steps_are_hollow() -> None:
    plan = planned(three())
    hollow = plan.nodes_of(2)[-1]
    hollow.metrics = Measured()
    hollow.checkpoints.clear()
    part = plan.nodes_of(0)[-1]
    part.checkpoints.clear()
    part.metrics = Measured((step, part.metrics[step]) for step in (5, 6, 7))
    page = drawn(plan)
    legend = 1
    assert page.count("rect", "todo") == 2 + legend
    assert "steps 6-10, not trained" in page.text("#tree")
    assert "steps 4-10, trained to step 7" in page.text("#tree")


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
    trials = [trial_of(planned(records), each) for each in records]
    assert [one.number for one in ranking(trials, Direction.MINIMIZE)] == [5, 1, 3]
    assert [one.number for one in ranking(trials, Direction.MAXIMIZE)] == [1, 3, 5]


def test_an_empty_study_costs_nothing() -> None:
    page = Page(render(content([])))
    assert "Nothing was trained; merge rate" in page.text("p")
    assert {"#audits", "#models"}.isdisjoint(page.texts)
