"""Tests of the analysis of dicts and lists of times: code only adds to them, and prints them."""

from __future__ import annotations

import textwrap

import pytest

from dasktune.trainer.function import trainer_of
from dasktune.trainer.liveness import Liveness
from tests.trainer.test_liveness_of_trainers import in_train, run_source

FUNCTION = """
import contextlib, logging, time
from time import perf_counter
log = logging.getLogger("timings")

@contextlib.contextmanager
def timed(spent, name):
    begun = time.monotonic()
    yield
    spent[name] = spent.get(name, 0.0) + time.monotonic() - begun

def returning(spent):
    spent["a"] = time.time()
    return spent["a"]

def branching(spent):
    if spent: log.info("spent")

def replacing(spent):
    spent = [time.time()]

def train(run):
    w, x = 0.0, {"a": 0.0}
    for step in run.steps():
        begun = perf_counter()
        w += step
{body}
        run.report(loss=w)
"""

HARMLESS = (
    "x['a'] += perf_counter() - begun",
    "x['a'] = perf_counter() - begun",
    "x.setdefault(step, []).append(perf_counter() - begun)",
    "x['a'] = x.get('a', 0.0) + perf_counter() - begun",
    "x['a'] += time.time() - begun; print(x, sum(x.values()) / len(x))",
    "log.info(f'{x[\"a\"]:.3f}'); x['a'] += time.time()",
    "with timed(x, 'a'): w += 1",
)

DECIDING = (
    "x['a'] += w",
    "x['a'] = step",
    "x['a'] += perf_counter(); run.report(seconds=x['a'])",
    "x['a'] += perf_counter(); w -= x['a']",
    "if x['a'] > 3: break",
    "y = x",
    "y = len(x)",
    "for name in x: w += 1",
    "keep(x)",
    "returning(x)",
    "branching(x)",
    "replacing(x)",
    "print(returning(x))",
    "print([run.report(seconds=each) for each in x.values()])",
    "print(x['a'] > 3 and run.report(seconds=1))",
    "print(y := x['a'])",
    "print(x, file=run.sink)",
    "print(max(x, key=run.report))",
    "print(x.pop('a'))",
    "print = run.report; print(x['a'])",
    "debug(x)",
    "x[keep(x)] = perf_counter()",
    "x['a'] = perf_counter() + keep(w)",
    "x |= {'a': w}",
    "x = {'a': w}",
    "print(locals())",
    "def get(): return x\nw += get()['a']",
    "return x",
)


@pytest.mark.parametrize("body", HARMLESS)
def test_times_in_a_dict_of_a_function_decide_nothing(body: str) -> None:
    assert ("train", "x") in timings(body)


@pytest.mark.parametrize("body", DECIDING)
def test_a_dict_that_a_function_reads_may_decide(body: str) -> None:
    assert ("train", "x") not in timings(body)


def timings(body: str) -> frozenset[tuple[str, str]]:
    """Return the variables with times of a training function whose loop has this body."""
    source = FUNCTION.replace("{body}", textwrap.indent(body, " " * 8))
    return Liveness.of(trainer_of(run_source(source)["train"])).timing_variables


@pytest.mark.parametrize(
    ("train", "is_time"),
    [
        ("self.d['a'] += time.time() - self.begun", True),
        ("self.d['a'] += time.time(); print(self.d)", True),
        ("self.d['a'] += self.x", False),
        ("self.d['a'] += time.time(); self.x = self.d['a']", False),
        ("self.d['a'] += time.time(); print(getattr(self, 'd'))", False),
        ("self.d['a'] += time.time(); other.d = self.x", False),
        ("self.d['a'] += time.time(); keep(self)", False),
    ],
)
def test_times_in_a_dict_of_a_trainer_decide_nothing(train: str, is_time: bool) -> None:
    made = "def build(self, hp): self.x, self.begun, self.d = 0, time.time(), {'a': 0.0}"
    liveness = in_train(train, made, module="import time")
    assert liveness.is_time("trainer.d['a']") is is_time
    assert not liveness.is_time("trainer.d"), "a step needs the dict"
