"""The merge rate over several studies is that of a count of all beginnings of all trials."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dasktune as dt
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
