"""Drawn curves are what a predictor can be asked about, and trials that begin alike are alike."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dasktune.algos.curves import PriorFitted, network
from dasktune.algos.curves.network.prior_fitted import Weights

PACKAGE = Path(network.__file__).parent
NAMES = ("curve_prior", "curve_questions", "train_predictor")


@pytest.fixture(scope="module")
def modules(load: Any) -> dict[str, ModuleType]:
    return {name: load(name) for name in NAMES}


def test_drawn_scores_are_finite_and_within_their_bounds(modules: dict[str, ModuleType]) -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        record = modules["curve_prior"].draw(rng)
        assert np.isfinite(record.scores).all()
        assert len(record.scores) == len(record.steps) >= 10
        assert record.low is None or record.scores.min() >= record.low
        assert record.high is None or record.scores.max() <= record.high
        assert record.spread > 0


def test_siblings_share_what_they_say(modules: dict[str, ModuleType]) -> None:
    rng = np.random.default_rng(1)
    found = [modules["curve_prior"].draw(rng) for _ in range(300)]
    pairs = [(one, at, other) for one in found for at, other in one.siblings]
    assert len(pairs) > 50
    for one, at, other in pairs:
        assert (one.scores[:at] == other.scores[:at]).all()
    assert any((one.scores[at:] != other.scores[at:]).any() for one, at, other in pairs)


def test_questions_can_be_asked(modules: dict[str, ModuleType]) -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        question = modules["curve_questions"].asked(rng, modules["curve_prior"].draw(rng))
        found = PriorFitted().predict(question.curve, question.steps)
        assert len(found.scores) == len(question.truths)


@pytest.mark.slow
def test_a_network_answers_as_its_weights_do_in_the_package(
    modules: dict[str, ModuleType],
) -> None:
    torch = pytest.importorskip("torch")
    trainer, questions = modules["train_predictor"], modules["curve_questions"]
    batch = questions.examples(np.random.default_rng(3), 1200)
    network = trainer.train(batch, 0, 1)
    weights = Weights.from_arrays(trainer.weights([network]))
    question = questions.asked(np.random.default_rng(4), modules["curve_prior"].draw(rng()))
    told = questions.describe(question.curve, question.steps)
    one = questions.Examples.of([question])
    with torch.no_grad():
        middle, away = network(one.rows)
        scores = trainer.levels(middle, away, one).numpy()
    assert np.sinh(weights.answer(told)) == pytest.approx(scores, rel=0.02, abs=0.02)


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def test_packaged_weights_name_the_code_of_the_prior(modules: dict[str, ModuleType]) -> None:
    with np.load(PACKAGE / "prior_fitted.npz", allow_pickle=False) as held:
        assert str(held["prior"]) == modules["train_predictor"].digest()
        assert int(held["seed"]) == 0
