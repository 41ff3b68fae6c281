"""Measured seconds of loading a state."""

from __future__ import annotations

import pytest

from dasktune.graph.loads import Loads


def test_class_without_loads_has_the_mean_of_all() -> None:
    loads = Loads(assumed=9.0)
    assert loads.seconds("old") == 9.0
    loads.observe("old", 1.0)
    loads.observe("new", 4.0)
    assert [loads.seconds(kind) for kind in ("old", "new", "other")] == [1.0, 4.0, 2.5]


def test_state_in_memory_is_no_load() -> None:
    loads = Loads(assumed=9.0)
    loads.observe("old", 0.0)
    assert loads.seconds("old") == 9.0


def test_old_loads_fade() -> None:
    loads = Loads(assumed=0.0)
    for seconds in [100.0] * 50 + [1.0] * 100:
        loads.observe("old", seconds)
    assert loads.seconds("old") == pytest.approx(1.0, abs=1.0)
