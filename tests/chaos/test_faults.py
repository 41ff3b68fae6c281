"""Timetables: what a seed decides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.faults import FAULTS, KILLS, KINDS, PAUSES, Fault, timetable

SILENCE = 6.0


def drawn(seed: int, kills: int = 10, **more: object) -> list[Fault]:
    return timetable(seed, **{"kills": kills, "gap": 2.0, "silence": SILENCE, **more})  # type: ignore[arg-type]


@given(seed=st.integers(0, 10**9), kills=st.integers(0, 30))
def test_timetable_has_the_asked_kills_and_half_as_many_pauses(seed: int, kills: int) -> None:
    found = drawn(seed, kills)
    assert [one.is_kill for one in found].count(True) == kills
    assert len(found) == kills + kills // 2
    assert found == drawn(seed, kills)
    times = [one.at for one in found]
    assert times == sorted(times)
    if kills >= len(KINDS):
        assert {one.target for one in found if one.is_kill} == {*KINDS}


@given(seed=st.integers(0, 10**9), only=st.sets(st.sampled_from([*FAULTS]), min_size=1))
def test_only_what_may_happen_happens(seed: int, only: set[str]) -> None:
    found = drawn(seed, only=only)
    assert {one.name for one in found} <= only
    assert sum(one.is_kill for one in found) == (10 if only & {*KILLS} else 0)


@given(seed=st.integers(0, 10**9))
def test_pauses_are_short_of_the_silence_timeout_or_beyond_it(seed: int) -> None:
    for fault in drawn(seed, 30):
        if fault.name in KILLS or fault.name == "cut-worker":
            assert fault.seconds == 0
        elif fault.name in ("freeze-worker", "lose-worker"):
            assert fault.seconds > SILENCE
        else:
            assert 0 < fault.seconds < SILENCE


def test_all_that_may_happen_happens_sometimes() -> None:
    found = {fault.name for seed in range(30) for fault in drawn(seed)}
    assert found == {*FAULTS} == {*KILLS, *PAUSES}


@pytest.mark.parametrize("gap", [0.2, 2.0])
def test_faults_come_as_often_as_they_should(gap: float) -> None:
    found = [drawn(seed, 100, gap=gap)[-1].at / 150 for seed in range(20)]
    assert sum(found) / len(found) == pytest.approx(gap, rel=0.1)
