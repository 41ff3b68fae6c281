"""docs/simulator.md: its examples run, and its tables are those of the code."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from distributed import Client

import dasktune as dt
from dasktune.simulate import Trace
from dasktune.traces.files import ATTRIBUTES
from dasktune.traces.timing import Overheads
from tests.pages import python_blocks

PAGE = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()


def test_page_study_is_recorded_and_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two_threads: Client
) -> None:
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "page_of_the_simulator.py"
    source.write_text("\n".join(python_blocks("simulator.md")))
    module = ModuleType("page_of_the_simulator")
    module.__file__ = str(source)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(source.read_text(), str(source), "exec"), module.__dict__)
    path = module.record(two_threads)
    trace = Trace.load(path)
    assert trace.shared == ((0, 0), (0, 0), (0, 0), (0, 4))
    found = module.replay(path)
    assert found.steps_executed == 4 * 9 - 4
    assert found.best_trial.value == trace.values[:, -1, 0].min()
    assert trace.overheads.start > 0
    assert module.without_overheads(trace).overheads.start == 0
    seconds, busy = module.unlike(dt.algos.Grid(dt.Space(lr=[0.1]), max_steps=4))
    assert (seconds, busy) == (2.0, {"fast": 2.0, "slow": 0.0})
    slower = module.four_times_slower(dt.algos.Grid(dt.Space(lr=[0.1, 0.2, 0.3]), max_steps=4))
    assert (slower.seconds, slower.steps_repeated) == (7.0, 0), "its stage leaves the slow worker"
    space = dt.Space(lr=dt.Float(0.1, 1.0))
    halving = dt.algos.ASHA(space, trials=64, max_steps=64, brackets="aggressive")
    scaled = module.on_several_workers(halving)
    assert {devices for trial in scaled.trials for _, devices in trial.devices} == {1, 2, 4}


def test_page_describes_the_whole_format() -> None:
    told = set(re.findall(r"`(\w+)`", PAGE))
    assert {"values", "measured", "seconds", "shared", "digest", "dasktune_trace"} <= told
    assert {*ATTRIBUTES, *Overheads().to_json()} <= told
