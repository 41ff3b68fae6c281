"""How long a plain emcee run of the eleven families takes, and how long `CurveEnsemble`.

The plain one is what the published tools do: one call of the log-probability for each walker,
a flat prior up to 100, and nothing that keeps predictions honest.
"""

from __future__ import annotations

import sys
import time
import warnings
from dataclasses import dataclass

import emcee
import numpy as np
from figures import Figure, main
from scipy.optimize import OptimizeWarning, curve_fit

from dasktune.algos.curves import Curve, Persistence, Prediction
from dasktune.algos.curves.curve import Predictor, check_question, future_steps
from dasktune.algos.curves.mcmc.ensemble import CurveEnsemble
from dasktune.algos.curves.mcmc.families import FAMILIES, Abscissae, CurveFamily
from dasktune.algos.curves.mcmc.frame import Array, Axis
from dasktune.types import Step

POINTS = (10, 40, 100)
MOST_SECONDS = 3.0
HIGHEST = 100.0


class PlainEnsemble:
    """Predicts with the weighted families, as in Domhan et al. (2015) and HyperDrive.

    Parameters
    ----------
    walkers, samples
        Of the sampler; 100 x 700 are 70,000 samples.
    recency
        Whether point i of n counts 10^(i/n) times.
    """

    def __init__(self, *, walkers: int = 100, samples: int = 700, recency: bool = True) -> None:
        self.walkers, self.samples, self.recency = walkers, samples, recency

    def predict(self, curve: Curve, steps: tuple[Step, ...], *, seed: int = 0) -> Prediction:
        """Return the prediction by the second half of the samples."""
        check_question(curve, steps)
        known = [step for step, _ in curve.measured]
        scores = np.array([score for _, score in curve.measured])
        low = scores.min() if curve.low is None else curve.low
        high = scores.max() if curve.high is None else curve.high
        if not scores.max() > scores.min():
            return Persistence().predict(curve, steps, seed=seed)
        axis = Axis.of(known)
        ends = Abscissae.of([2.0, axis.x([max(curve.max_steps, steps[-1])])[0]])
        y = (scores - low) / (high - low)
        with np.errstate(all="ignore"):
            target = Target.of(Abscissae.of(axis.x(known)), y, ends, self.recency)
            if target is None:
                return Persistence().predict(curve, steps, seed=seed)
            expected, observed = self._sample(target, Abscissae.of(axis.x(steps)), seed)
        return Prediction.of_samples(
            curve.last_step, steps, low + (high - low) * observed, low + (high - low) * expected
        )

    def identity(self) -> dict[str, object]:
        """Return class and arguments."""
        return {"predictor": type(self).__name__, **vars(self)}

    def _sample(self, target: Target, ahead: Abscissae, seed: int) -> tuple[Array, Array]:
        random = np.random.RandomState(seed)
        ball = 1e-6 * random.standard_normal((self.walkers, len(target.start)))
        sampler = emcee.EnsembleSampler(self.walkers, len(target.start), target.log_probability)
        state = emcee.State(target.start + ball, random_state=random.get_state())
        sampler.run_mcmc(state, self.samples, skip_initial_state_check=True)
        chain = sampler.get_chain(discard=self.samples // 2, flat=True)
        expected = np.array([target.curve(each, ahead) for each in chain])
        noise = random.standard_normal(expected.shape)
        return expected, expected + chain[:, -1:] * noise


@dataclass(frozen=True)
class Target:
    """The log-probability of one walker, over the families that could be fitted."""

    at: Abscissae
    y: Array
    ends: Abscissae
    recency: bool
    families: tuple[CurveFamily, ...]
    start: Array

    @classmethod
    def of(cls, at: Abscissae, y: Array, ends: Abscissae, recency: bool) -> Target | None:
        """Return the target of the fit, or None if all families fail."""
        families, start = [], []
        for family in FAMILIES:
            try:
                with warnings.catch_warnings(action="ignore", category=OptimizeWarning):
                    fitted, _ = curve_fit(
                        lambda _, *values, of=family.of: of(at, *values), at.x, y, family.starts
                    )
            except (RuntimeError, TypeError, ValueError):
                continue
            if fits(family.of(ends, *fitted)) and np.isfinite(family.of(at, *fitted)).all():
                families.append(family)
                start += fitted.tolist()
        if not families:
            return None
        weights = [10.0] * len(families)
        draft = cls(at, y, ends, recency, tuple(families), np.array([*start, *weights, 1.0]))
        noise = max(1e-4, float(np.std(draft.curve(draft.start, at) - y)))
        draft.start[-1] = noise
        return draft

    def parts(self, coordinates: Array, at: Abscissae) -> list[Array]:
        """Return the values of each family."""
        values, place = [], 0
        for family in self.families:
            values.append(family.of(at, *coordinates[place : place + family.size]))
            place += family.size
        return values

    def curve(self, coordinates: Array, at: Abscissae) -> Array:
        """Return the weighted mean of the families."""
        weights = coordinates[-1 - len(self.families) : -1]
        average: Array = weights @ np.array(self.parts(coordinates, at)) / weights.sum()
        return average

    def log_probability(self, coordinates: Array) -> float:
        """Return it for one walker."""
        if coordinates[-1] <= 0 or coordinates[-1 - len(self.families) : -1].min() < 0:
            return -np.inf
        if not all(fits(values) for values in self.parts(coordinates, self.ends)):
            return -np.inf
        size = len(self.y)
        counts = 10 ** (np.arange(1, size + 1) / size) if self.recency else np.ones(size)
        residuals = (self.curve(coordinates, self.at) - self.y) / coordinates[-1]
        probability = -float(counts @ (0.5 * residuals**2 + np.log(coordinates[-1])))
        return probability if np.isfinite(probability) else -np.inf


def fits(ends: Array) -> bool:
    """Return whether a family neither falls nor ends out of range."""
    return bool(ends[0] <= ends[1] and 0 <= ends[1] <= HIGHEST)


def curve_of(points: int) -> Curve:
    """Return the first `points` of a noisy curve of 120 steps."""
    x = np.arange(1.0, points + 1)
    noise = 0.01 * np.random.default_rng(points).standard_normal(points)
    scores = np.clip(0.8 - 0.6 / x**0.7 + noise, 0, 1)
    steps = tuple(range(1, points + 1))
    return Curve(steps=steps, scores=tuple(scores.tolist()), max_steps=120, low=0.0, high=1.0)


def seconds(predictor: Predictor, points: int) -> float:
    """Return how many seconds of CPU a prediction takes."""
    curve = curve_of(points)
    before = time.process_time()
    predictor.predict(curve, future_steps(points, curve.max_steps))
    return time.process_time() - before


def measure(short: bool) -> list[Figure]:
    """Predict curves of several lengths with both."""
    samples = 20 if short else 700
    plain, ours = PlainEnsemble(samples=samples), CurveEnsemble(samples=samples)
    ours.predict(curve_of(5), (120,))  # what is imported once counts for neither
    figures = []
    for points in POINTS:
        slow, fast = seconds(plain, points), seconds(ours, points)
        note = f"{points} points, {100 * samples:,} samples, CPU time"
        figures += [
            Figure(name=f"plain emcee, {points} points", value=slow, unit="s", note=note),
            Figure(
                name=f"CurveEnsemble, {points} points",
                value=fast,
                unit="s",
                at_most=MOST_SECONDS,
                note=note,
            ),
            Figure(name=f"faster, {points} points", value=slow / fast, unit="x"),
        ]
    return figures


if __name__ == "__main__":
    sys.exit(main("curve_reference", measure))
