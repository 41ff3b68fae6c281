"""Needs of branches: of a configuration, beside those of the study, and against each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dasktune as dt
from dasktune._study.preview import preview
from dasktune.errors import ClusterError, ConfigurationError
from dasktune.needs import NO_NEEDS, Needs
from dasktune.sequences import MultiStep
from dasktune.space import Branch, Space, contradictions, with_branches

DECAY = MultiStep(0.1, milestones=[3], gamma=0.1)

SIZES = Space(size=[Branch("huge", needs={"tags": "a100"}), "small"])

NESTED = Space(
    model=[
        Branch(
            "deep", Space(size=[Branch("huge", needs={"tags": "a100"}), "small"]), needs={"GPU": 1}
        ),
        "flat",
    ],
    lr=[Branch(DECAY, needs={"cores": 4}), 0.1],
)


def needs_by_point(space: Space, study: Needs = NO_NEEDS) -> dict[tuple[Any, ...], str]:
    points = space.configurations()
    return {
        tuple(point.params.values()): str(with_branches(study, space, point.sequences))
        for point in points
    }


def test_configuration_has_the_needs_of_its_branches() -> None:
    decay = repr(DECAY)
    assert needs_by_point(NESTED) == {
        ("deep", "huge", decay): "GPU=1, cores=4, tag a100",
        ("deep", "huge", 0.1): "GPU=1, tag a100",
        ("deep", "small", decay): "GPU=1, cores=4",
        ("deep", "small", 0.1): "GPU=1",
        ("flat", decay): "cores=4",
        ("flat", 0.1): "nothing",
    }
    assert list(contradictions(NESTED, NO_NEEDS)) == []


def test_branch_changed_in_mid_trial_counts_as_at_step_0() -> None:
    space = Space(model=[Branch("deep", needs={"GPU": 1}), "flat"])
    deep, flat = (point.sequences["model"] for point in space.configurations())
    joined = dt.sequences.Piecewise(["deep", "flat"], [3])
    assert str(with_branches(NO_NEEDS, space, {"model": joined})) == "GPU=1"
    assert str(with_branches(NO_NEEDS, space, {"model": deep})) == "GPU=1"
    assert with_branches(NO_NEEDS, space, {"model": flat}) is NO_NEEDS


def test_alternatives_of_study_and_branch_are_joined() -> None:
    study = Needs.of([{"GPU": 1}, {"cores": 16}])
    space = Space(model=[Branch("deep", needs=[{"GPU": 1, "tags": "new"}, {"GPU": 2}])])
    (text,) = needs_by_point(space, study).values()
    assert text == "GPU=1, tag new or GPU=1, cores=16, tag new or GPU=2, cores=16"


@pytest.mark.parametrize(
    ("space", "study", "names"),
    [
        (Space(a=[Branch("x", needs={"GPU": 2}), "y"]), {"GPU": 1}, ["GPU=1 of the study", "a=x"]),
        (
            Space(a=[Branch("x", Space(b=[Branch("z", needs={"GPU": 2})]), needs={"GPU": 1})]),
            None,
            ["GPU=1 of a=x", "GPU=2 of b=z"],
        ),
        (
            Space(a=[Branch("x", needs={"GPU": 1})], b=[Branch("z", needs={"GPU": 2}), 1]),
            None,
            ["GPU=1 of a=x", "GPU=2 of b=z"],
        ),
    ],
)
def test_contradiction_is_refused_with_both_parts(
    space: Space, study: Any, names: list[str]
) -> None:
    problems = list(contradictions(space, Needs.of(study)))
    assert problems
    assert all(name in problems[0] for name in names)
    tuner = dt.algos.Grid(space, max_steps=4)
    with pytest.raises(ConfigurationError, match="they name unlike amounts"):
        dt.simulate(tuner, lambda values, step: 1.0, needs=study)
    with pytest.raises(ConfigurationError, match="they name unlike amounts"):
        preview(space, max_steps=4, needs=study)


def test_other_branches_of_one_choice_do_not_contradict() -> None:
    space = Space(a=[Branch("x", needs={"GPU": 1}), Branch("y", needs={"GPU": 2})])
    assert list(contradictions(space, NO_NEEDS)) == []


def tuner_of(space: Space) -> dt.algos.Repeats:
    return dt.algos.Repeats(dt.algos.ASHA(space, max_steps=4, trials=6, seed=1), seeds=2)


def test_simulated_trials_run_where_their_branch_says() -> None:
    space = Space(model=[Branch("deep", needs={"GPU": 1}), "flat"], lr=dt.Float(0.0, 1.0))
    ran: set[tuple[Any, str]] = set()

    def seconds(values: dict[str, Any], kind: str) -> float:
        ran.add((values["model"], kind))
        return 1.0

    def loss(values: dict[str, Any], step: int) -> float:
        return float(values["lr"]) / step

    has = {"workers": {"gpu": 1, "cpu": 2}, "offers": {"gpu": {"GPU": 1}}}
    found = dt.simulate(tuner_of(space), loss, seconds_per_step=seconds, **has)
    assert found.summary()["trials"] == 12
    assert found.busy_seconds["gpu"] > 0
    with pytest.raises(ClusterError, match="no worker has GPU=1"):
        dt.simulate(tuner_of(space), loss, workers={"cpu": 2})


def test_trial_fails_if_its_function_contradicts_its_branch() -> None:
    space = Space(model=[Branch("deep", needs={"GPU": 1}), Branch("wide", needs={"GPU": 2})])
    found = dt.simulate(
        dt.algos.Grid(space, max_steps=4),
        lambda values, step: 1.0,
        workers={"gpu": 1},
        offers={"gpu": {"GPU": 2}},
        needs=lambda hp: {"GPU": 1},
    )
    deep, wide = found.trials
    assert (deep.state.value, wide.state.value) == ("COMPLETE", "FAIL")


def test_branch_without_a_space_is_an_option() -> None:
    space = Space(model=[Branch("deep", needs={"GPU": 1}), Branch("wide"), "flat"], lr=[1, 2])
    assert space.size == 6
    assert space.names == ("model", "lr")
    models = [point.params["model"] for point in space.configurations()]
    assert models == ["deep", "deep", "wide", "wide", "flat", "flat"]
    drawn = space.sample(np.random.default_rng(0))
    assert space.at(drawn.point) == drawn


def test_needs_are_no_part_of_the_identity_of_a_space() -> None:
    plain, needy = (
        Space(a=[Branch("x", Space(b=[1, 2]), needs=each)]) for each in (None, {"GPU": 1})
    )
    assert plain.to_json() == needy.to_json()
    assert plain == needy
    assert plain.to_json() == Space(a=[Branch("x", Space(b=[1, 2]))]).to_json()


def test_branch_with_wrong_needs_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="Branch: needs must be finite numbers > 0"):
        Branch("x", needs={"GPU": 0})
