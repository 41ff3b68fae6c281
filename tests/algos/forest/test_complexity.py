"""Complexity: equation 1 of the paper, by hand."""

from __future__ import annotations

import math
import sys

import pytest

from dasktune.algos.forest.complexity import complexity_of, domain_complexity
from dasktune.algos.forest.models import Splitting, models_of
from dasktune.sequences import MultiStep
from dasktune.space import Branch, Choice, DefinedByRun, Family, Float, Int, Space

C = Float(1e-3, 15.0, log=True)
GAMMA = Float(0.0, 1e3)
R = Float(-1e3, 1e3)
DEGREE = Int(1, 15)


def complexities(space: Space) -> dict[str, float]:
    """Return the complexity of each model of a space by its name."""
    models = models_of(space, Splitting())
    return {str(model): complexity_of(domains) for model, domains in models.items()}


def test_four_svm_kernels_by_hand() -> None:
    space = Space(
        kernel=[
            Branch("linear", Space(C=C)),
            Branch("rbf", Space(C=C, gamma=GAMMA)),
            Branch("sigmoid", Space(C=C, gamma=GAMMA, r=R)),
            Branch("poly", Space(C=C, gamma=GAMMA, r=R, degree=DEGREE)),
        ]
    )
    # C: ln 0.001 = -6.907755, ln 15 = 2.708050, w = 9.615805; 0.005 w = 0.048079.
    # a = exp(-6.859676) = 0.00104925, b = exp(2.659971) = 14.295882: 2 + 14.294832.
    soft = 16.294832
    # gamma: from 5 to 995: 2 + 990. r: from -990 to 990: 2 + 1980. degree: 2 - 1 / 15.
    assert complexities(space) == pytest.approx(
        {
            "kernel=linear": soft,
            "kernel=rbf": soft + 992,
            "kernel=sigmoid": soft + 992 + 1982,
            "kernel=poly": soft + 992 + 1982 + 29 / 15,
        },
        abs=1e-5,
    )


def test_a_logarithmic_domain_counts_its_values() -> None:
    assert domain_complexity(Float(1.0, 100.0, log=True)) == pytest.approx(2 + 10**1.99 - 10**0.01)


@pytest.mark.parametrize(
    ("domain", "complexity"),
    [
        (Int(1, 15), 2 - 1 / 15),
        (Int(1, 8, log=True), 2 - 1 / 8),
        (Float(0.0, 1.0, step=0.25), 2 - 1 / 5),
        (Choice(["a", "b"]), 1.5),
        (Int(7, 7), 0.0),
        (Float(7.0, 7.0), 0.0),
        (Choice(["a"]), 0.0),
    ],
)
def test_a_discrete_domain_counts_its_points(domain: Float | Int | Choice, complexity: float):
    assert domain_complexity(domain) == pytest.approx(complexity)


def test_every_continuous_domain_exceeds_every_discrete() -> None:
    assert domain_complexity(Float(0.0, 1e-9)) >= 2 > domain_complexity(Int(0, 10**6))


def test_fixed_values_count_nothing() -> None:
    assert complexities(Space(lr=0.1, x=Float(0.0, 1.0))) == pytest.approx({"all": 2.99})


def test_a_family_is_the_sum_of_its_arguments() -> None:
    steps = Family(MultiStep, init=Float(0.0, 1.0), milestones=[[5], [9]], gamma=[0.1, 0.2])
    assert complexities(Space(lr=steps)) == pytest.approx({"all": 2.99 + 1.5 + 1.5})


def test_shared_dimensions_count_in_every_model() -> None:
    space = Space(C=Float(0.0, 10.0), part=[Branch("in", Space(x=Int(1, 2))), None])
    assert complexities(space) == pytest.approx({"part=in": 11.9 + 1.5, "part=null": 11.9})


def test_a_model_of_a_function_has_its_coordinates() -> None:
    def by_run(trial):  # type: ignore[no-untyped-def]
        x = trial.suggest_float("x", 0.0, 1.0)
        if trial.suggest_categorical("deep", [True, False]):
            return {"x": x, "depth": trial.suggest_int("depth", 1, 4)}
        return {"x": x}

    models = models_of(DefinedByRun(by_run), Splitting())
    named = {str(model): complexity_of(domains) for model, domains in models.items()}
    assert named == pytest.approx({"deep=true": 2.99 + 1.75, "deep=false": 2.99})


def test_the_widest_domain_is_finite() -> None:
    widest = sys.float_info.max
    assert math.isfinite(domain_complexity(Float(-widest, widest)))
