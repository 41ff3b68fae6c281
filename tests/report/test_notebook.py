"""Objects as notebooks show them: tables and drawings, escaped, in the notebook's own colours."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import dasktune as dt
from dasktune.algos import ASHA, Grid
from dasktune.sequences import Constant, Cosine, Cyclic, Exponential, MultiStep, Warmup
from tests.pages import python_blocks
from tests.toy_trainers import Adding

EVIL = "<script>alert('x')</script>"
FAMILY = dt.Family(MultiStep, init=dt.Float(0.1, 1, log=True), milestones=[3], gamma=0.1)
SPACE = dt.Space(lr=FAMILY, batch_size=[64, 128], depth=3)
VOID = {"path", "rect", "circle", "line", "br"}


class Balanced(HTMLParser):
    """Raises where a tag closes another one than the last that was opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.seen.add(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def html_of(value: Any) -> str:
    """Return the HTML of a value; it must be well-formed and escaped."""
    text: str = value._repr_html_()
    parser = Balanced()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    assert "script" not in parser.seen
    outside = re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL)
    assert not re.search(r"#[0-9a-f]{3,6}|color|background", outside)  # else dark pages suffer
    return text


def new_study(folder: Path, **options: Any) -> dt.Study:
    return dt.create_study(Adding, name="note", metric="loss", storage=folder, **options)


def test_a_space_is_written_as_in_code() -> None:
    text = "Space(lr=Family(MultiStep, init=Float(0.1, 1.0, log=True), milestones=(3,), gamma=0.1)"
    assert repr(SPACE) == f"{text}, batch_size=[64, 128], depth=3)"
    assert repr(dt.Int(1, 9, step=2)) == "Int(1, 9, step=2)"
    assert repr(dt.Branch("sgd", dt.Space(m=0.9))) == "Branch('sgd', Space(m=0.9))"


def test_a_space_is_a_table_with_branches_below() -> None:
    space = dt.Space({EVIL: [dt.Branch("sgd", dt.Space(momentum=[0.0, 0.9])), "adam"]})
    text = html_of(space)
    assert text.count("<tr>") == 3
    assert "= sgd: <b>momentum</b>" in text
    assert "continuous" in html_of(SPACE)


def test_a_tuner_names_its_options_and_space() -> None:
    tuner = ASHA(SPACE, trials=20, max_steps=9)
    assert repr(tuner).startswith("ASHA(space of lr, batch_size, depth, trials=20, max_steps=9")
    assert len(repr(tuner)) < 200
    text = html_of(tuner)
    assert "<td>max_steps</td><td>9</td>" in text
    assert "<b>batch_size</b>" in text
    assert repr(ASHA.__new__(ASHA)) == "<ASHA>"


@pytest.mark.parametrize(
    ("sequence", "steps"),
    [
        (Warmup(5, 0.1) >> Exponential(0.1, gamma=0.9), 60),
        (MultiStep(0.1, milestones=[80], gamma=0.1), 100),
        (Exponential(0.1, gamma=0.9)[:7], 7),
        (Cyclic(0.1, 1.0, half_period=5), 60),
    ],
)
def test_a_sequence_is_drawn_over_its_changes(sequence: Any, steps: int) -> None:
    text = html_of(sequence)
    assert f"over {steps} steps" in text


def test_a_sequence_that_cannot_be_drawn_is_text() -> None:
    assert html_of(Constant(EVIL)).startswith("<code>Constant(&quot;&lt;script&gt;")
    assert "<svg" not in html_of(Exponential(1e300, gamma=1e300))
    assert "<svg" in html_of(Cosine(0.1, period=20))


def test_a_preview_shows_its_sentences() -> None:
    cost = dt.preview(dt.Space(lr=[0.1, 0.2]), max_steps=10)
    assert html_of(cost).count("<div>") == 1 + len(str(cost).splitlines())
    both = dt.preview([dt.Space(lr=[0.1]), dt.Space(lr=[0.2])], max_steps=10)
    assert "merge rate q" in html_of(both)


def test_a_stage_tree_is_drawn_with_its_trials(tmp_path: Path) -> None:
    study = new_study(tmp_path)
    milestones = [[10], [10, 20], [30]]
    space = dt.Space(lr=dt.Family(MultiStep, init=0.1, milestones=milestones, gamma=0.1))
    tree = study.stage_tree(Grid(space, max_steps=40))
    assert repr(tree) == f"StageTree({len(tree)} stages, {tree.steps} steps)"
    text = html_of(tree)
    assert "Stage tree of 3 trials" in text
    assert text.count('class="stage bar-stage"') == len(tree)
    assert "trained" not in text
    study.close()


def told_study(folder: Path) -> dt.Study:
    """Return a study of two trials with results."""
    study = new_study(folder)
    for value in (0.5, 0.25):
        study.add_trial({"lr": 0.1, "name": EVIL}, values=[value], steps=3)
    return study


def test_a_study_shows_its_best_trials(tmp_path: Path) -> None:
    study = told_study(tmp_path)
    text = html_of(study)
    assert "<b>Study note</b>: 2 trials: 2 complete" in text
    assert text.index("<td>0.25</td>") < text.index("<td>0.5</td>")
    study.close()


def test_a_study_without_trials_shows_its_goal(tmp_path: Path) -> None:
    study = new_study(tmp_path)
    assert "loss (minimize)" in html_of(study)
    study.close()


def test_a_trial_shows_values_metrics_and_error(tmp_path: Path) -> None:
    study = told_study(tmp_path)
    text = html_of(study.trials[0])
    assert "<b>Trial 0</b>: complete, 3 steps, loss 0.5" in text
    assert len(repr(study.trials[0])) < 120
    study.close()
    failed = dt.Trial(
        number=4,
        state=dt.TrialState.FAIL,
        params={},
        sequences={"lr": Exponential(0.1, gamma=0.9)},
        steps=2,
        values=[0.5],
        metrics={1: {"loss": 1.0}, 2: {"loss": 0.5}},
        error=EVIL,
        user_attrs={},
        metric="loss",
    )
    text = html_of(failed)
    assert "<b>Trial 4</b>: failed, 2 steps" in text
    assert text.count("<svg") == 2
    assert "&lt;script&gt;" in text


def test_the_block_of_the_page_shows_a_sequence() -> None:
    (block,) = python_blocks("notebooks.md")
    names: dict[str, Any] = {}
    exec(block, names)
    assert "<svg" in names["lr"]._repr_html_()
