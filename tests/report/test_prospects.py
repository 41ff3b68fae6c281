"""The fans on the page, what POP held of its trials, and what suspending took."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dasktune as dt
from dasktune._engine.event_log import describe
from dasktune._results.prediction import TrialPrediction
from dasktune._results.summary import Suspensions, spread_of, summarise
from dasktune.algos.curves import LEVELS, Curve, Persistence, Prediction
from dasktune.algos.pop import Label
from dasktune.graph.plan import SearchPlan
from dasktune.report.costs import Content, gather, render
from dasktune.report.prospects import MOST_FANS, Prospects, Standing, prospects_of, standings_of
from dasktune.types import Decision, Direction, Extend, Now, Predict, Report


class Learning(dt.Trainer):
    """An accuracy that rises to what its learning rate allows, slowly."""

    def build(self, hp: Mapping[str, Any]) -> None:
        self.steps = 0
        self.weight = np.zeros(1000)

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp.get("lr", getattr(self, "lr", 0.0))

    def train(self) -> None:
        self.steps += 1

    def evaluate(self) -> dict[str, float]:
        return {"accuracy": self.lr * (1 - math.exp(-self.steps / 8))}

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "lr": self.lr, "weight": self.weight}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps, self.lr = state["steps"], state["lr"]


class Doubling:
    """Predicts that a curve comes to about twice what it is."""

    def predict(self, curve: Curve, steps: tuple[int, ...], *, seed: int = 0) -> Prediction:
        row = tuple(2 * curve.scores[-1] + 0.2 * (level - 0.5) for level in LEVELS)
        return Prediction(
            after=curve.last_step,
            steps=steps,
            scores=(row,) * len(steps),
            deviations=(0.1,) * len(steps),
        )

    def identity(self) -> dict[str, object]:
        return {"predictor": "Doubling"}


def made(folder: Path) -> dt.Study:
    return dt.create_study(
        Learning, name="learning", storage=folder, metric="accuracy", direction="maximize"
    )


def text_of(page: str, section: str) -> str:
    """Return the text of a section with an id; empty if there is none."""
    found = re.search(rf'<section id="{section}">(.*?)</section>', page, re.DOTALL)
    return "" if found is None else re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", found[1]))


def test_standings_follow_the_last_decision() -> None:
    records = [
        {"kind": "tuner", "identity": {}},
        {"decisions": [{"do": "register", "trial": 0, "max_steps": 9}]},
        {"decisions": [{"do": "extend", "trial": 0, "until": 3, "priority": -1.0}]},
        {"decisions": [{"do": "extend", "trial": 1, "until": 3, "priority": -2.0}]},
        {"decisions": [{"do": "extend", "trial": 2, "until": 9, "priority": 1.25}]},
        {
            "decisions": [
                {"do": "rank", "trial": 2, "priority": 1.75},
                {"do": "predict", "trial": 1},
            ]
        },
        {"decisions": [{"do": "stop", "trial": 1}, {"do": "finish"}]},
    ]
    found = standings_of(records)
    assert found == {
        0: Standing(label=Label.OPPORTUNISTIC),
        1: Standing(label=Label.POOR),
        2: Standing(label=Label.PROMISING, confidence=0.75),
    }
    assert str(found[2]) == "promising, p = 0.75"
    by_label = Prospects(standings=found).by_label()
    assert list(by_label.items()) == [("promising", [2]), ("opportunistic", [0]), ("poor", [1])]


def test_labels_are_those_of_the_tuner_itself_as_long_as_it_runs() -> None:
    """Whatever it does with poor trials: what it decides says what it holds of them."""
    for ends_poor in (False, True):
        space = dt.Space(lr=dt.Float(0.05, 0.9))
        tuner = dt.algos.POP(
            space,
            target=0.7,
            trials=12,
            max_steps=40,
            every=4,
            ends_poor=ends_poor,
            predictor=Doubling(),
        )
        tuner.prepare({"directions": ["maximize"]})
        told: list[dict[str, Any]] = []
        waiting: dict[int, Extend] = {}
        seen: set[Label] = set()

        def take(
            decisions: list[Decision],
            told: list[dict[str, Any]] = told,
            waiting: dict[int, Extend] = waiting,
        ) -> list[int]:
            told.append({"decisions": list(map(describe, decisions))})
            waiting |= {one.trial: one for one in decisions if isinstance(one, Extend)}
            return [one.trial for one in decisions if isinstance(one, Predict)]

        take(tuner.ask(4))
        rates = {trial: 0.07 * (trial + 1) for trial in range(12)}
        for turn in range(60):
            trial = sorted(waiting)[turn % len(waiting)]
            step = (turn // 12 + 1) * 4
            accuracy = rates[trial] * (1 - math.exp(-step / 8))
            now = Now(seconds=float(turn), step_seconds=1.0, workers=4)
            report = Report(trial=trial, step=step, metrics={}, losses=(-accuracy,), now=now)
            for asked in take(tuner.tell(report)):
                take(tuner.tell_prediction(asked, tuner.question(asked).answer()))
            held = {number: label for number, (label, _) in tuner.standing.items()}
            found = {number: one.label for number, one in standings_of(told).items()}
            seen |= set(found.values())
            assert {number: found[number] for number in held} == held
            if told[-1]["decisions"][-1:] == [{"do": "finish"}]:
                break
        assert seen == set(Label)


def test_the_best_trials_that_may_go_on_are_predicted(tmp_path: Path, two_threads: Client) -> None:
    study = made(tmp_path)
    tuner = dt.algos.ASHA(
        dt.Space(lr=dt.Float(0.1, 1)), trials=17, min_steps=3, max_steps=24, eta=2
    )
    options: Any = {"client": two_threads, "progress": False, "last_line": False}
    study.optimize(tuner, limits=dt.Limits(steps=45), **options)
    content = gather(study)
    best = sorted(
        (
            one
            for one in study.trials
            if one.state in {dt.TrialState.RUNNING, dt.TrialState.PAUSED} and one.value is not None
        ),
        key=lambda one: -(one.value or 0),
    )
    assert [one.trial for one in content.prospects.predictions] == [
        one.number for one in best[:MOST_FANS]
    ]
    page = render(content, study.results.row.id)
    text = text_of(page, "prospects")
    for one in best[:MOST_FANS]:
        assert f"Trial {one.number} has " in text
        assert "Predicted at step 24: accuracy " in text
        assert f'href="#/{study.results.row.id}/trial/{one.number}"' in page
    assert "POP" not in text
    study.optimize(tuner, **options)
    assert any(one.state is dt.TrialState.PRUNED for one in study.trials)
    assert prospects_of(study, study.trials) == Prospects(), "the tuner wants no further step"
    study.close()


def test_a_study_that_is_done_or_empty_has_no_predictions(
    tmp_path: Path, two_threads: Client
) -> None:
    study = made(tmp_path)
    assert prospects_of(study, study.trials) == Prospects()
    study.optimize(
        dt.algos.Grid(dt.Space(lr=[0.1, 0.2]), max_steps=4), client=two_threads, progress=False
    )
    assert prospects_of(study, study.trials) == Prospects()
    assert text_of(render(gather(study)), "prospects") == ""
    study.add_trial({"lr": 0.5}, 0.5)
    assert prospects_of(study, study.trials) == Prospects()
    study.close()


def test_page_shows_pops_labels(tmp_path: Path, two_threads: Client) -> None:
    study = made(tmp_path)
    tuner = dt.algos.POP(
        dt.Space(lr=dt.Float(0.05, 0.9)),
        target=0.7,
        trials=12,
        max_steps=40,
        every=4,
        bounds=(0, 1),
        kill=0.02,
    )
    study.optimize(tuner, client=two_threads, progress=False, last_line=False)
    found = prospects_of(study, study.trials)
    assert found.target == 0.7
    assert found.standings.keys() <= {one.number for one in study.trials}
    assert Label.PROMISING in {one.label for one in found.standings.values()}
    assert all(one.curve.high == 1 for one in found.predictions)
    text = text_of(render(gather(study)), "prospects")
    assert "At last POP held promising: " in text
    study.close()


def content(suspensions: Suspensions | None) -> Content:
    plan = SearchPlan("0" * 32)
    summary = summarise(
        plan,
        {},
        steps_executed=0,
        steps_repeated=0,
        wall_seconds=0,
        worker_seconds=0,
        best_value=None,
        suspensions=suspensions,
    )
    return Content(summary=summary, stages=[])


def test_page_shows_suspending_in_milliseconds_and_kilobytes() -> None:
    found = Suspensions(
        count=1200, seconds=spread_of([0.158] * 19 + [0.219]), nbytes=spread_of([358_000.0])
    )
    text = text_of(render(content(found)), "suspended")
    assert "1,200 times a trial came to where it was asked to" in text
    assert "mean 161.05 358 " in text
    assert "standard deviation 13.295 0 " in text
    assert "95th percentile 158 358 " in text
    assert "largest 219 358" in text
    assert text_of(render(content(None)), "suspended") == ""


@pytest.mark.parametrize("standing", [None, Standing(label=Label.PROMISING, confidence=0.5)])
def test_page_prediction_has_the_standing_of_its_trial(standing: Standing | None) -> None:
    curve = Curve(steps=(4, 8), scores=(0.04, 0.08), max_steps=12)
    found = TrialPrediction(
        trial=0,
        metric="accuracy",
        direction=Direction.MAXIMIZE,
        curve=curve,
        prediction=Persistence().predict(curve, (10, 12)),
    )
    held = {} if standing is None else {0: standing}
    shown = replace(
        content(None), prospects=Prospects(predictions=[found], standings=held, target=0.5)
    )
    text = text_of(render(shown), "prospects")
    words = "Trial 0 (promising, p = 0.50) has" if standing else "Trial 0 has 0.08 at step 8."
    assert words in text
    assert "; 0.5 with probability 0." in text
