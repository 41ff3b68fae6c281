"""A changed training has another fingerprint, or a named gap; an unchanged one has the same."""

from __future__ import annotations

import itertools
import json
import math
import os
import string
import subprocess
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from dasktune.trainer import Fingerprint, fingerprint

from .print_digests import digests, load, restore_settings
from .programs import CHANGED, UNCHANGED, Pair, both

Outcome = tuple[Fingerprint, str]
Run = Callable[[Pair], tuple[Outcome, Outcome]]

PATCHED = (
    *((np, "tanh"), (np.linalg, "norm"), (math, "tanh"), (math, "pi"), (torch.Tensor, "relu")),
    *((Fraction, "limit_denominator"), (string.Template, "safe_substitute")),
)
"""Attributes of installed packages that the programs set."""


@pytest.fixture(autouse=True)
def unchanged_packages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take back after each test what the programs set in installed packages."""
    threads = torch.get_num_threads()
    for place, name in PATCHED:
        monkeypatch.setattr(place, name, getattr(place, name))
    monkeypatch.setitem(sys.modules, "program", ModuleType("program"))
    yield
    restore_settings()
    torch.set_num_threads(threads)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that loads two programs: fingerprint, and result of the training."""
    numbers = itertools.count()

    def outcome(text: str) -> Outcome:
        restore_settings()
        trainer = load(tmp_path / str(next(numbers)) / "program.py", text).Net
        return fingerprint(trainer, {}), repr(trainer().train())

    def run(pair: Pair) -> tuple[Outcome, Outcome]:
        first, second = both(pair)
        return outcome(first), outcome(second)

    return run


NAMED = {
    "NumPy function patched": "numpy.tanh",
    "NumPy function replaced by another": "setting numpy.tanh",
    "function of Python patched": "setting math.tanh",
    "patched function imported by name": "setting numpy.tanh",
    "patched function of a submodule": "setting numpy.linalg.norm",
    "method of an installed class patched": "Fraction.limit_denominator",
    "method of an installed base patched": "Template.safe_substitute",
    "method of an unnamed class patched": "setting torch.Tensor.relu",
    "constant of an installed module set": "setting math.pi",
    "attribute of an installed module set by name": "setting math.pi",
    "keyword default made by a call": "itertools.count",
    "wrapper of an installed package": "numpy.errstate",
    "wrapped or not": "numpy.errstate",
    "globals of a function": "class Net: __globals__",
    "setting: search of convolutions": "",
}
"""By change the gap that is named beside another digest."""

UNSEEN = {
    "function by an unknown name in globals()": "class Net: globals",
    "function in vars() of a module": "class Net: sys.modules",
    "function of a module by its name": "class Net: sys.modules",
    "subclasses": "class Net: __subclasses__",
    "documentation read as data": "class Net: __doc__",
    "annotations read as data": "class Net: __annotations__",
    "text that is run": "class Net: eval",
    "value: template": "string.Template",
    "value: random generator": "random.Random",
    "value: counting iterator": "itertools.count",
    "value: cycle": "itertools.cycle",
    "value: generator": "generator <genexpr>",
    "value: iterator": "list_iterator",
    "value: context variable": "ContextVar",
    "value: weak reference": "weakref.ReferenceType",
    "value: generator of NumPy": "numpy.Generator",
    "value: sparse tensor": "torch.Tensor",
    "setting: seed of NumPy": "setting numpy.random.seed",
    "setting: seed of Python": "setting random.seed",
    "setting: seed of torch": "setting torch.manual_seed",
    "setting: threads of torch": "setting torch.set_num_threads",
    "file: by a helper that is given the name": "c.txt",
    "file: large": "c.txt",
}
"""By change the gap that is named instead of another digest: the content cannot be known."""


@pytest.mark.filterwarnings(
    "ignore:the matrix subclass",
    "ignore:divide by zero",
    "ignore:unclosed file",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)
@pytest.mark.parametrize("name", CHANGED)
def test_changed_program_has_another_fingerprint(name: str, run: Run) -> None:
    (first, result), (second, other_result) = run(CHANGED[name])
    assert result != other_result, "the change must change the training"
    gaps = {*first.gaps, *second.gaps} - {"data"}
    expected = {**NAMED, **UNSEEN}.get(name)
    assert (first.digest == second.digest) == (name in UNSEEN)
    assert bool(gaps) == (expected is not None)
    assert expected is None or any(gap.endswith(expected) for gap in gaps)


@pytest.mark.parametrize("name", UNCHANGED)
def test_unchanged_program_has_the_same_fingerprint(name: str, run: Run) -> None:
    (first, result), (second, other_result) = run(UNCHANGED[name])
    assert result == other_result
    assert first == second
    assert set(first.gaps) == {"data"}


def test_file_changed_before_its_first_fingerprint_is_a_gap(tmp_path: Path) -> None:
    text = "class Net:\n    def train(self): return 1\n"
    path = tmp_path / "a" / "program.py"
    trainer = load(path, text).Net
    path.write_text(text.replace("return 1", "return 12"))
    running = fingerprint(trainer, {})
    assert "start Python anew" in running.gaps["Net.train: its source"]
    imported = fingerprint(load(tmp_path / "b" / "program.py", path.read_text()).Net, {})
    before = fingerprint(load(tmp_path / "c" / "program.py", text).Net, {})
    assert len({before.digest, running.digest, imported.digest}) == 3


@pytest.mark.parametrize(
    "text", ["class Net:\n    def train(self): return 1\n", "class Net: k = 1"]
)
def test_file_changed_later_counts_when_imported_again(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a" / "program.py"
    trainer = load(path, text).Net
    before = fingerprint(trainer, {})
    assert set(before.gaps) == {"data"}
    path.write_text("# One line more.\n" + text.replace("1", "12"))
    assert fingerprint(trainer, {}) == before
    imported = load(tmp_path / "b" / "program.py", path.read_text())
    assert fingerprint(imported.Net, {}).digest != before.digest


def test_battery_has_programs_of_both_kinds() -> None:
    assert len(CHANGED) >= 100
    assert len(UNCHANGED) >= 40
    assert len(CHANGED.keys() - UNSEEN.keys()) >= 100
    assert NAMED.keys() | UNSEEN.keys() <= CHANGED.keys()


PINNED = {
    "class attribute set after the class [1]": "4e68d34bc78fd9e20a385606c5550399",
    "method registered with a dispatching method [0]": "6855dc1411c216603bdc8f0ed9559e14",
    "defaults of a data class's constructor [0]": "0209fde9e2a4f4e7ff2d9f7cba07439b",
    "method of an enumeration replaced [0]": "fd1116953e06e4ab4f81823bd4e06630",
    "lambdas of a comprehension in a class [0]": "e734462c008ac2c817c260bddcf5f7b8",
    "attribute of a cached function [0]": "f5cb6d1e6be4c2dc121e648c6aa3ee25",
    "closure of a decorator [0]": "4ff8cd91d6a22464e422c25d49dabd1e",
    "slot with a mangled name [0]": "8ae1f3d072a245d12fcfb17c46d014b1",
    "value: list in itself [0]": "73f92009fa32b8166b1e691ce8ad9e56",
    "generic class that was used [1]": "b1a8d22d8b2cf5ffcdf68d02407ba567",
}
"""Digests in every process, on every machine, and in every version of Python."""


def test_digests_are_pinned() -> None:
    """A change of the rule changes these digests: then it needs another number (`RULE`)."""
    found = digests("first", plain=True)
    assert {name: found[name] for name in PINNED} == PINNED


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:the matrix subclass", "ignore:divide by zero")
def test_digests_are_the_same_in_a_new_process() -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"{__package__}.print_digests", "last", "all"],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        check=True,
        capture_output=True,
    )
    assert json.loads(done.stdout) == digests("first", plain=False)
