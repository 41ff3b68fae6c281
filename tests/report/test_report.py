"""The report of a real study: what it says, and how it looks in a real browser."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dasktune as dt
from dasktune._study.study import Study
from dasktune._worker.hardware import hardware_of
from dasktune.algos import Grid
from dasktune.report import draw_tree, plot_sequence
from dasktune.sequences import Constant, Exponential, MultiStep, Warmup

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


def answers(page: Path) -> dict[str, Any]:
    """Return the answers that a report holds."""
    _, _, rest = page.read_text().partition('<script type="application/json" id="answers">')
    document: dict[str, Any] = json.loads(rest.partition("</script>")[0])
    return document


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
    failures = answers(page)["overview/1"]["failures"]
    assert {failure["message"][:25] for failure in failures} == {"ValueError: no such thing"}
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
    assert len(answers(page)["tree/1"]["parent"]) == len(nodes)


def test_report_with_half_a_surrogate_pair_is_written(tmp_path: Path) -> None:
    odd = dt.create_study(Descent, name="odd", storage=tmp_path, metric="loss")
    odd.add_trial({"lr": 0.1}, 0.5, user_attrs={"file": "a\udcffb"})
    page = odd.report(tmp_path / "new" / "folder" / "page.html")
    assert answers(page)["trial/1?number=0"]["user_attrs"] == {"file": "a\udcffb"}
    odd.close()


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
def test_report_runs_no_code_of_names_in_a_browser(page: Path, chromium: str) -> None:
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    flags += ["--disable-background-networking", "--disable-sync"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        shown = browser.new_page(viewport={"width": 390, "height": 844})
        wrong: list[str] = []
        shown.on("pageerror", lambda error: wrong.append(str(error)))
        shown.on("dialog", lambda dialog: wrong.append(dialog.message))
        shown.goto(page.as_uri())
        shown.get_by_role("heading", name=HOSTILE).wait_for()
        for part in ("Trials", "Hyper-parameters", "Failures", "Costs"):
            shown.get_by_role("link", name=part).click()
            shown.locator("main section").first.wait_for()
        shown.get_by_role("link", name="Failures").click()
        shown.locator("summary").first.click()
        shown.locator("pre").get_by_text(HOSTILE).first.wait_for()
        browser.close()
    assert wrong == []
