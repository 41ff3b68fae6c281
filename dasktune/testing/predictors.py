"""The conformance suite for predictors of learning curves."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np

from dasktune.algos.curves.curve import Branch, Curve, Prediction, Predictor, future_steps
from dasktune.errors import ConfigurationError
from dasktune.testing.calls import ConformanceError
from dasktune.types import Step

_MOST_RANGES = 30.0
"""Largest distance of a prediction from the measured scores, in ranges of these scores."""

Answer = tuple[str, Curve, tuple[Step, ...], Prediction]
"""A curve's name, the curve, the steps of the question, and the prediction."""


class PredictorConformance:
    """Tests that a predictor keeps the protocol of `dasktune.algos.curves.Predictor`.

    Subclass it in a test file, under a name that pytest collects, and define `make`. Any test
    runner works. The suite asks the predictor about all curves in `curves`, some 30; if a
    prediction is slow, make a small predictor.

    The suite does not judge how good predictions are.

    Examples
    --------
    >>> from dasktune.algos.curves import Persistence
    >>> class TestMyPredictor(PredictorConformance):
    ...     def make(self):
    ...         return Persistence()
    >>> TestMyPredictor().test_the_answer_is_to_the_question()
    """

    curves: ClassVar[Mapping[str, Curve]]
    """The measured curves by name; the end of the module has the default."""

    _known: ClassVar[tuple[Answer, ...]]

    # ------------------------------------------------------------------ what users define

    def make(self) -> Predictor:
        """Return a new predictor, always with the same arguments."""
        raise NotImplementedError(f"{type(self).__name__} must define make(self)")

    def make_other(self) -> Predictor | None:
        """Return a predictor with other arguments, or None."""
        return None

    # ------------------------------------------------------------------- what is answered

    def test_the_answer_is_to_the_question(self) -> None:
        """A prediction starts after the curve's last step and has the steps of the question."""
        for name, curve, steps, prediction in self._answers():
            if prediction.after != curve.last_step or prediction.steps != steps:
                raise ConformanceError(
                    f"{name}: a prediction must be after step {curve.last_step} and at steps "
                    f"{list(steps)}, got after {prediction.after} and at {list(prediction.steps)}"
                )

    def test_numbers_are_finite_and_fit_the_log(self) -> None:
        """Scores and deviations are finite, deviations not negative, and JSON holds them."""
        for name, _, _, prediction in self._answers():
            numbers = [
                *prediction.deviations,
                *(score for row in prediction.scores for score in row),
            ]
            if not all(map(math.isfinite, numbers)):
                raise ConformanceError(f"{name}: all numbers must be finite, got {prediction}")
            if min(prediction.deviations) < 0:
                raise ConformanceError(
                    f"{name}: deviations must be >= 0, got {list(prediction.deviations)}"
                )
            Prediction.from_json(json.loads(json.dumps(prediction.to_json(), allow_nan=False)))

    def test_scores_stay_within_their_bounds(self) -> None:
        """No level of a prediction is below `Curve.low` or above `Curve.high`."""
        for name, curve, _, prediction in self._answers():
            low = -math.inf if curve.low is None else curve.low
            high = math.inf if curve.high is None else curve.high
            least, most = _ends(prediction)
            if least < low or most > high:
                raise ConformanceError(
                    f"{name}: scores must be within {low} and {high}, got {least} to {most}"
                )

    def test_predictions_do_not_run_away(self) -> None:
        """Without bounds, a prediction for a long curve stays near the measured scores."""
        for name, curve, _, prediction in self._answers():
            scores = [score for _, score in curve.measured]
            seen = max(scores) - min(scores)
            least, most = _ends(prediction)
            far = max(most - max(scores), min(scores) - least)
            if len(scores) >= 10 and seen > 0 and far > _MOST_RANGES * seen:
                raise ConformanceError(
                    f"{name}: scores must stay within {_MOST_RANGES:g} ranges of those seen, "
                    f"{min(scores)} to {max(scores)}, got {least} to {most}"
                )

    def test_a_constant_curve_may_stay_constant(self) -> None:
        """For a constant curve, the middle 98% of a prediction include its value."""
        for name, curve, _, prediction in self._answers():
            scores = {score for _, score in curve.measured}
            if len(scores) > 1 or len(curve.measured) < 2:
                continue
            (score,) = scores
            slack = 1e-6 * max(1.0, abs(score))
            for low, high in prediction.interval(0.98):
                if not low - slack <= score <= high + slack:
                    raise ConformanceError(
                        f"{name}: {score} must be within the middle 98%, got {low} to {high}"
                    )

    def test_a_score_that_is_not_finite_counts_as_not_measured(self) -> None:
        """NaN and infinite scores have the same effect as missing points."""
        curve = self.curves["rising"]
        holes = tuple(
            math.nan if place in (3, 7) else score for place, score in enumerate(curve.scores)
        )
        kept = [pair for place, pair in enumerate(curve.measured) if place not in (3, 7)]
        without = replace(
            curve,
            steps=tuple(step for step, _ in kept),
            scores=tuple(score for _, score in kept),
        )
        steps = future_steps(curve.last_step, curve.max_steps)
        first = self.make().predict(replace(curve, scores=holes), steps)
        _alike(first, self.make().predict(without, steps), "without what is not finite")

    # ----------------------------------------------------------------------- what is refused

    def test_what_cannot_be_answered_is_refused(self) -> None:
        """An empty curve is refused, and so are steps that do not ascend from its last step."""
        rising = self.curves["rising"]
        last = rising.last_step
        nothing = Curve(steps=(), scores=(), max_steps=9)
        never = Curve(steps=(1, 2), scores=(math.nan, math.inf), max_steps=9)
        questions: dict[str, tuple[Curve, tuple[Step, ...]]] = {
            "an empty curve": (nothing, (5,)),
            "a curve that is never finite": (never, (5,)),
            "no steps": (rising, ()),
            "a step that is past": (rising, (last,)),
            "steps that do not ascend": (rising, (last + 2, last + 1)),
        }
        for name, (curve, steps) in questions.items():
            try:
                prediction = self.make().predict(curve, steps)
            except ConfigurationError:
                continue
            raise ConformanceError(f"{name} must be refused, got {prediction}")

    # ----------------------------------------------------------------- the same again and again

    def test_the_same_question_has_the_same_answer(self) -> None:
        """With one seed, a second call, a new predictor and a pickled one give the same answer."""
        predictor = self.make()
        copied: Predictor = pickle.loads(pickle.dumps(predictor))
        for name in ("rising", "one point", "rewards"):
            curve = self.curves[name]
            steps = future_steps(curve.last_step, curve.max_steps)
            first = predictor.predict(curve, steps, seed=7)
            _alike(predictor.predict(curve, steps, seed=7), first, f"{name}, asked again")
            _alike(self.make().predict(curve, steps, seed=7), first, f"{name}, made anew")
            _alike(copied.predict(curve, steps, seed=7), first, f"{name}, pickled")

    def test_the_global_random_generator_is_left_alone(self) -> None:
        """Random numbers come from the seed alone."""
        before = _global_state()
        curve = self.curves["rising"]
        first = self.make().predict(curve, (curve.max_steps,), seed=3)
        if _global_state() != before:
            raise ConformanceError("the state of NumPy's global generator must stay the same")
        np.random.random()  # draws of other code have no effect on a prediction
        _alike(self.make().predict(curve, (curve.max_steps,), seed=3), first, "asked again")

    def test_the_identity_tells_arguments_apart(self) -> None:
        """An identity is JSON: equal for equal arguments, different for different ones.

        It does not change with a prediction, and its entry ``predictor`` has the name.
        """
        predictor = self.make()
        if not isinstance(predictor.identity().get("predictor"), str):
            raise ConformanceError(
                f"an identity must hold the name of a predictor, got {predictor.identity()}"
            )
        before = json.dumps(predictor.identity(), sort_keys=True, allow_nan=False)
        curve = self.curves["rising"]
        predictor.predict(curve, (curve.max_steps,))
        for what, other in (("after an answer", predictor), ("made anew", self.make())):
            identity = json.dumps(other.identity(), sort_keys=True)
            if identity != before:
                raise ConformanceError(f"an identity must be {before}, got {what} {identity}")
        different = self.make_other()
        if different and json.dumps(different.identity(), sort_keys=True) == before:
            raise ConformanceError(f"other arguments must have another identity, got {before}")

    # ------------------------------------------------------------------------ how it asks

    def _answers(self) -> tuple[Answer, ...]:
        """Return the predictions for all curves, made once because some predictors are slow."""
        if "_known" not in vars(type(self)):
            type(self)._known = tuple(self._asked())
        return type(self)._known

    def _asked(self) -> Iterator[Answer]:
        predictor = self.make()
        for name, curve in self.curves.items():
            steps = future_steps(curve.last_step, curve.max_steps)
            try:
                prediction = predictor.predict(curve, steps, seed=1)
            except Exception as error:
                error.add_note(f"asked about {name!r}: {curve}")
                raise
            if not isinstance(prediction, Prediction):
                raise ConformanceError(
                    f"{name}: an answer must be a Prediction, got {prediction!r}"
                )
            yield name, curve, steps, prediction


def _curves() -> dict[str, Curve]:
    """Return the default curves."""
    rng = np.random.default_rng(20)
    x = np.arange(1.0, 21.0)
    noise = 0.01 * rng.standard_normal(20)
    rise = 0.8 - 0.6 / x**0.8 + noise
    fall = 0.2 + 0.6 / x**0.5 + noise
    rewards = -300 + 450 / (1 + np.exp(-(x - 8))) + 60 * rng.standard_normal(20)
    jump = np.where(x < 12, 0.6, 0.75) + noise
    crash = np.where(x < 15, rise, 0.1 + noise)
    holes = np.where(x % 4 == 2, np.nan, rise)
    holes[10] = np.inf
    rates = ((0, 0.1), (30, 0.01))
    sibling = Branch(
        at=10, steps=tuple(range(1, 41)), scores=tuple(rise.tolist() * 2), rates=((0, 0.1),)
    )
    share = {"low": 0.0, "high": 1.0}
    return {
        "rising": _curve(rise, **share),
        "rising, no bounds": _curve(rise),
        "falling": _curve(fall, **share),
        "falling, no bounds": _curve(fall),
        "rewards": _curve(np.clip(rewards, -500, 300), low=-500.0, high=300.0),
        "rewards, no bounds": _curve(rewards),
        "losses": _curve(-3 / x),
        "huge": _curve(1e9 * rise),
        "tiny": _curve(1e-9 * rise),
        "too large to be squared": _curve(1e200 * rewards),
        "as large as numbers are": _curve(1.7e308 * np.linspace(-1, 1, 20)),
        "two points, as large as numbers are": _curve(np.array([-1.7e308, 1.7e308])),
        "bounds as large as numbers are": _curve(rise, low=-1.7e308, high=1.7e308),
        "constant, bounds as large as numbers are": _curve(
            np.full(20, 0.5), low=-1.7e308, high=1.7e308
        ),
        "far from zero": _curve(1e6 + rise),
        "jump": _curve(jump, **share),
        "crash": _curve(crash, **share),
        "holes": _curve(holes, **share),
        "the last not finite": _curve(np.append(rise, np.nan), **share),
        "constant": _curve(np.full(20, 0.5), **share),
        "constant, no bounds": _curve(np.full(20, 3.0)),
        "constant at its bound": _curve(np.zeros(20), **share),
        "beyond its bounds": _curve(rise + 0.5, low=0.0, high=1.0),
        "two points": _curve(rise[:2], **share),
        "two points, no bounds": _curve(rise[:2]),
        "two equal points": _curve(np.full(2, 0.1), **share),
        "one point": _curve(rise[:1], **share),
        "one point, no bounds": _curve(rise[:1]),
        "from step 0": replace(_curve(rise), steps=tuple(range(20))),
        "every 100 steps": replace(
            _curve(rise, **share), steps=tuple(range(100, 2100, 100)), max_steps=10_000
        ),
        "with rates and a sibling": replace(
            _curve(rise, **share), rates=rates, siblings=(sibling,)
        ),
    }


def _curve(scores: np.ndarray, low: float | None = None, high: float | None = None) -> Curve:
    steps = tuple(range(1, len(scores) + 1))
    return Curve(steps=steps, scores=tuple(scores.tolist()), max_steps=60, low=low, high=high)


PredictorConformance.curves = _curves()


def _ends(prediction: Prediction) -> tuple[float, float]:
    return min(row[0] for row in prediction.scores), max(row[-1] for row in prediction.scores)


def _alike(prediction: Prediction, expected: Prediction, when: str) -> None:
    if prediction != expected:
        raise ConformanceError(f"{when}: must be {expected}, got {prediction}")


def _global_state() -> str:
    return repr(np.random.get_state(legacy=False))
