"""Needs in simulations: stages run where they are met, and are refused as in real runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import dasktune as dt
from dasktune.errors import ClusterError, ConfigurationError
from dasktune.simulate import Simulation

OFFERS = {"fast": {"GPU": 1, "tags": ["A100"]}, "slow": {"cores": 8}}
POOL = {"fast": 1, "slow": 1}


def by_width(values: Mapping[str, Any]) -> Any:
    return {"tags": "a100"} if values["width"] > 8 else None


def grid(widths: tuple[int, ...] = (8, 64)) -> dt.algos.Grid:
    return dt.algos.Grid(dt.Space(width=list(widths)), max_steps=10)


def simulate(needs: Any, tuner: dt.algos.Tuner | None = None, **options: Any) -> Simulation:
    options = {"workers": POOL, "offers": OFFERS} | options
    return dt.simulate(tuner or grid(), lambda values, step: 1 / step, needs=needs, **options)


@pytest.mark.parametrize(
    ("needs", "busy"),
    [
        ({"GPU": 1, "tags": "a100"}, {"fast": 20.0, "slow": 0.0}),
        ({"cores": 4}, {"fast": 0.0, "slow": 20.0}),
        ([{"GPU": 2}, {"cores": 4}], {"fast": 0.0, "slow": 20.0}),
        ([{"GPU": 1}, {"cores": 4}], {"fast": 10.0, "slow": 10.0}),
        (None, {"fast": 10.0, "slow": 10.0}),
    ],
)
def test_simulated_stages_run_where_needs_are_met(needs: Any, busy: Mapping[str, float]) -> None:
    assert simulate(needs).busy_seconds == busy


def test_simulated_needs_of_a_configuration_decide_its_class() -> None:
    found = simulate(by_width, grid((64, 65, 66)))
    assert found.busy_seconds == {"fast": 30.0, "slow": 0.0}
    assert simulate(by_width, grid((8, 64))).busy_seconds == {"fast": 10.0, "slow": 10.0}


@pytest.mark.parametrize(
    ("needs", "message"),
    [
        ({"GPU": 2}, "no worker has GPU=2; workers: fast .GPU=1, tags a100.; slow .cores=8."),
        ({"tags": "a10"}, "no worker has a tag 'a10', nearest is 'a100'"),
        (lambda values: {"GPU": values["width"]}, "trial 0: no worker has GPU=64"),
    ],
)
def test_simulated_needs_that_no_worker_meets_are_refused(needs: Any, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        simulate(needs, grid((64,)) if callable(needs) else None)


def test_simulated_needs_unmet_later_end_the_simulation() -> None:
    space = dt.Space(width=dt.Choice([8, 9, 10, 64]))
    tuner = dt.algos.Grid(space, max_steps=10)
    with pytest.raises(ClusterError, match="trial 3: no worker has GPU=2"):
        simulate(lambda values: {"GPU": 2} if values["width"] == 64 else None, tuner)


def test_simulated_needs_function_that_raises_fails_its_trial() -> None:
    found = simulate(lambda values: {"cores": 1} if values["width"] == 8 else {"cores": -1})
    states = [trial.state.value for trial in found.trials]
    assert states == ["COMPLETE", "FAIL"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"needs": {"GPU": -1}}, "needs must be finite numbers > 0 by name"),
        ({"offers": {"fats": {"GPU": 1}}}, "unknown class of workers with offers 'fats'"),
        ({"offers": {"fast": [{"GPU": 1}]}}, "offers of class 'fast' must be a mapping"),
        ({"offers": {"fast": {"GPU": 0}}}, r"offers of class .fast.: .* got .*GPU"),
        ({"offers": 3}, "offers must be amounts and tags by class of workers, got 3"),
        ({"workers": 2}, "unknown class of workers with offers 'fast'"),
    ],
)
def test_invalid_offers_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        simulate(**{"needs": None, **options})
