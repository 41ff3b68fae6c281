"""The merge rate over several studies is that of a count of all beginnings of all trials."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dasktune as dt
from dasktune.errors import ClusterError, ConfigurationError
from dasktune.graph.cost import StudyTrials, cost_of, costs_of, steps_together
from dasktune.sequences import Constant, MultiStep, Piecewise, Sequence
from dasktune.types import Sequences, Step

LEVELS = (0.1, 0.2)
MOST_STEPS = 6

cuts = st.lists(st.integers(1, MOST_STEPS - 1), min_size=1, max_size=2, unique=True).map(sorted)
levels = st.sampled_from(LEVELS)
sequences: st.SearchStrategy[Sequence] = st.one_of(
    st.builds(Constant, levels),
    cuts.flatmap(
        lambda found: st.builds(
            Piecewise,
            st.lists(levels, min_size=len(found) + 1, max_size=len(found) + 1),
            st.just(found),
        )
    ),
    st.builds(MultiStep, levels, milestones=cuts, gamma=st.just(0.5)),
)
trials = st.tuples(
    st.fixed_dictionaries({"lr": sequences, "width": levels.map(Constant)}),
    st.integers(0, MOST_STEPS),
)
studies = st.builds(
    StudyTrials,
    trials=st.lists(trials, max_size=5).map(tuple),
    seeds=st.lists(st.integers(0, 1), min_size=5, max_size=5).map(tuple),
    fingerprint=st.sampled_from("ab"),
)


def counted(asked: Iterable[tuple[Hashable, Sequences, Step]]) -> int:
    """Count the different beginnings step by step: slow, and plainly right."""
    beginnings = set()
    for start, functions, steps in asked:
        beginning: tuple[object, ...] = (start,)
        for step in range(steps):
            beginning = (
                *beginning,
                *((name, one(step)) for name, one in sorted(functions.items())),
            )
            beginnings.add(beginning)
    return len(beginnings)


@given(st.lists(studies, max_size=3))
def test_steps_together_are_the_beginnings_that_differ(asked: list[StudyTrials]) -> None:
    costs = costs_of(asked, workers=1)
    spelled_out = [
        ((study.fingerprint, seed), functions, steps)
        for study in asked
        for (functions, steps), seed in zip(study.trials, study.seeds, strict=False)
    ]
    unique = counted(spelled_out)
    assert costs.steps_unique == unique
    assert costs.steps_requested == sum(steps for _, _, steps in spelled_out)
    assert steps_together(spelled_out) == (costs.steps_requested, unique)
    assert costs.merge_rate == (costs.steps_requested / unique if unique else 1.0)
    for study, cost in zip(asked, costs.studies, strict=True):
        assert cost == cost_of(study.trials, workers=1, seeds=study.seeds)


def test_spaces_that_overlap_are_trained_once() -> None:
    flat, dropping = Constant(0.1), MultiStep(0.1, milestones=[30], gamma=0.1)
    one, two = dt.Space(lr=[flat, dropping]), dt.Space(lr=[flat, Constant(0.2)])
    costs = dt.preview([one, two], max_steps=60)
    assert [cost.steps_unique for cost in costs.studies] == [90, 120]
    assert (costs.steps_requested, costs.steps_unique) == (240, 150)
    assert costs.merge_rate == 1.6
    assert costs.studies[0] == dt.preview(one, max_steps=60)


@pytest.mark.parametrize(("lr", "note"), [(0.1, ""), (0.2, ": the studies have nothing in common")])
def test_preview_text_shows_the_merge_rates(lr: float, note: str) -> None:
    spaces = [dt.Space(lr=Constant(0.1)), dt.Space(lr=Constant(lr))]
    text = str(dt.preview(spaces, max_steps=10))
    assert text.endswith(f"p = 1.000, 1.000{note}")


OFFERS = {"fast": {"GPU": 1, "tags": ["a100"]}}


def on_classes(needs: Any, widths: list[int]) -> float:
    """Return the bound on 1 fast and 3 slow workers."""
    pool = {"fast": 1, "slow": 3}
    space = dt.Space(width=widths)
    cost = dt.preview(space, max_steps=10, workers=pool, offers=OFFERS, needs=needs)
    assert cost.workers == 4
    return cost.bound_steps


def test_preview_counts_only_workers_that_meet_needs() -> None:
    assert on_classes(None, [1, 2, 3, 4]) == 10.0
    assert on_classes({"GPU": 1}, [1, 2, 3, 4]) == 40.0
    assert on_classes([{"GPU": 1}, {}], [1, 2, 3, 4]) == 10.0
    by_width = {1: None, 2: None, 3: {"GPU": 1}, 4: {"tags": "a100"}}
    assert on_classes(lambda values: by_width[values["width"]], [1, 2, 3, 4]) == 20.0


def test_preview_needs_that_no_worker_meets_are_refused() -> None:
    with pytest.raises(ClusterError, match="trials 0, 1: no worker has GPU=2; workers: fast"):
        on_classes({"GPU": 2}, [1, 2])
    with pytest.raises(ClusterError, match=r"trial 1: .*no worker has a tag 'a10', nearest is"):
        on_classes(lambda values: {"tags": "a10"} if values["width"] > 1 else None, [1, 2])


def test_preview_of_several_spaces_refuses_needs() -> None:
    with pytest.raises(ConfigurationError, match=r"needs, offers and classes .* one space only"):
        dt.preview([dt.Space(width=[1])], max_steps=3, needs={"GPU": 1})  # type: ignore[call-overload]
