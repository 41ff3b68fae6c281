"""The report of a real study: what it says, and how it looks in a real browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dasktune as dt
from dasktune.algos import Grid
from dasktune.report import draw_tree, plot_sequence
from dasktune.sequences import Constant, Exponential, MultiStep, Warmup
from dasktune.study.study import Study
from dasktune.worker.hardware import hardware_of

BAR = r'<g class="stage bar-stage">'
HOSTILE = "<script>alert('x')</script>&\""
SPACE = {
    "lr": [Constant(0.1), MultiStep(0.1, milestones=[3], gamma=0.1), Exponential(0.1, gamma=0.9)],
    HOSTILE: ["plain", HOSTILE],
}


class Descent(dt.Trainer):
    """Fails for one configuration, with markup in its message."""

    def build(self, hp: Any) -> None:
        self.weight = 1.0

    def setup(self, hp: Any) -> None:
        self.lr = hp.get("lr", getattr(self, "lr", 0.0))
        self.kind = hp.get(HOSTILE, getattr(self, "kind", ""))

    def train(self) -> None:
        self.weight -= self.lr * self.weight
        if self.kind == HOSTILE and self.lr < 0.05:
            raise ValueError(f"no such thing: {HOSTILE}")

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.weight}

    def state_dict(self) -> dict[str, Any]:
        return {"weight": self.weight}

    def load_state_dict(self, state: Any) -> None:
        self.weight = state["weight"]


@pytest.fixture(scope="module")
def client(two_threads: Client) -> Client:
    return two_threads


@pytest.fixture(scope="module")
def study(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Study:
    made = dt.create_study(
        Descent, name=HOSTILE, storage=tmp_path_factory.mktemp("study"), metric="loss"
    )
    made.optimize(Grid(dt.Space(SPACE), max_steps=8), client=client, progress=False)
    return made


@pytest.fixture(scope="module")
def page(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return study.report(tmp_path_factory.mktemp("report") / "page.html")


def test_it_says_what_was_measured(study: Study, page: Path) -> None:
    text, summary = page.read_text(), study.summary()
    beyond = summary["steps_beyond"]
    assert beyond > 0, "of trials that failed"
    share = (summary["steps_executed"] - beyond) / summary["steps_requested"]
    assert f"rained {share:.0%} of the steps asked for" in text
    assert f", and {beyond} more that no result uses: trials were stopped or failed" in text
    assert f">{summary['steps_unique']}<" in re.sub(r"\s", "", text)
    assert {trial.state.value for trial in study.trials} == {"COMPLETE", "FAIL"}
    assert "ValueError: no such thing" in text
    assert f"{len(study.stages())} attempts on 2 workers" in text
    assert f"2 workers: 2 x {hardware_of({}).name}" in text


def test_names_and_errors_cannot_run_code(page: Path) -> None:
    text = page.read_text()
    assert "alert(" in text
    assert "<script>alert" not in text
    loaded = re.findall(r"<(?:link|img|script|iframe)[^>]+(?:src|href)=[\"']?([^\"'>]+)", text)
    assert all(one.startswith("data:") for one in loaded), "it loads nothing"


def test_the_tree_has_a_bar_for_every_node(study: Study, page: Path) -> None:
    nodes = list(study.plan)
    drawn = str(draw_tree(study.plan)._repr_svg_())
    assert len(re.findall(BAR, drawn)) == len(nodes)
    assert f"{len(nodes)} stages" in page.read_text()


@pytest.mark.slow
def test_a_huge_plan_is_cut_and_says_so(tmp_path: Path) -> None:
    from dasktune.graph.plan import SearchPlan

    plan = SearchPlan("0" * 32)
    for number in range(10_000):
        lr = MultiStep(0.1, milestones=[1 + number % 97], gamma=1 / (2 + number // 97))
        plan.register(number, {"lr": lr}, 100)
    drawn = str(draw_tree(plan)._repr_svg_())
    assert len(drawn) < 2_000_000
    assert len(re.findall(BAR, drawn)) < len(list(plan))


def test_an_empty_study_has_a_report(tmp_path: Path) -> None:
    empty = dt.create_study(Descent, name="empty", storage=tmp_path, metric="loss")
    assert "empty" in empty.report(tmp_path / "page.html").read_text()


def test_sequences_are_plotted(tmp_path: Path) -> None:
    plot = plot_sequence(
        {"lr": Warmup(5, 0.1) >> Constant(0.1), "size": 64}, 20, tmp_path / "plot.svg"
    )
    assert (tmp_path / "plot.svg").read_text().lstrip().startswith("<svg")
    assert "lr" in plot._repr_svg_()


@pytest.mark.browser
@pytest.mark.parametrize(("width", "height"), [(1400, 900), (390, 844)])
def test_it_looks_right_in_a_browser(
    study: Study, page: Path, chromium: str, width: int, height: int
) -> None:
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    flags += ["--disable-background-networking", "--disable-sync"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        shown = browser.new_page(viewport={"width": width, "height": height})
        said: list[str] = []
        requested: list[str] = []
        shown.on("console", lambda message: said.append(message.text))
        shown.on("pageerror", lambda error: said.append(str(error)))
        shown.on("dialog", lambda dialog: said.append(dialog.message))
        shown.on("request", lambda request: requested.append(request.url))
        shown.goto(page.as_uri())
        assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert shown.locator("#tree .bar-stage").count() == len(list(study.plan))
        heading = shown.locator(".trials th").first
        numbers = shown.locator(".trials tbody tr td:first-child")
        heading.click()
        upward = [int(one) for one in numbers.all_inner_texts()]
        heading.click()
        assert [int(one) for one in numbers.all_inner_texts()] == upward[::-1]
        assert upward == sorted(upward)
        shown.locator("summary").first.click()
        assert shown.locator("pre").first.is_visible()
        browser.close()
    assert said == []
    assert requested == [page.as_uri()]
