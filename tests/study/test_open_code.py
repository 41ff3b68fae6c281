"""Code that changes while a study is open: other code is refused, and nothing of it is stored."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dasktune as dt
from dasktune.errors import ConfigurationError
from dasktune.trainer.lifecycle import run_alone
from tests.study.cells import Notebook
from tests.study_folder import without_bytecode

CONSTANT = "K = 2.0\nTABLE = {'by': [1.0]}\n"
HELPER = "def helper(x):\n    return x * K * TABLE['by'][0]\n"
MODEL = (
    "class Model:\n    bias = 0.0\n    def value(self, x):\n        return helper(x) + self.bias\n"
)
TRAINER = """
import dasktune as dt

COUNT = {"n": 0}
DRAWN = 0

class Net(dt.Trainer):
    def build(self, hp):
        self.x = 0.0

    def setup(self, hp):
        self.by = hp["x"]

    def train(self):
        global DRAWN
        COUNT["n"] += 1
        DRAWN = DRAWN + 1
        self.x = Model().value(self.by)

    def evaluate(self):
        return {"loss": self.x}

    def state_dict(self):
        return {"x": self.x}

    def load_state_dict(self, state):
        self.x = state["x"]

def train(run):
    for _ in run.steps():
        run.report(loss=Model().value(run["x"]))

def objective(trial):
    return Model().value(trial.suggest_float("x", 0.0, 3.0))
"""

CHANGES = {
    "constant": ("K = 3.0", "constant K"),
    "constant changed in place": ("TABLE['by'][0] = 5.0", "constant TABLE"),
    "helper": ("def helper(x):\n    return x + 1", "function helper"),
    "helper bound to a lambda": ("helper = lambda x: x", "function <lambda>"),
    "model class": (MODEL.replace("0.0", "1.0"), "class Model"),
    "attribute of the model": ("Model.bias = 1.0", "class Model"),
    "method of the model": ("Model.value = lambda self, x: x", "class Model"),
    "attribute of the trainer": ("Net.width = 3", "class Net"),
    "trainer": (TRAINER.replace('{"x": self.x}', '{"x": self.x + 0}'), "class Net"),
    "setting of NumPy": ("import numpy as np\nnp.seterr(under='raise')", "setting numpy errors"),
    "setting of torch": ("import torch\ntorch.set_default_dtype(torch.float64)", "torch default"),
    "precision of decimals": ("import decimal\ndecimal.getcontext().prec = 5", "decimal context"),
}
"""By name: the cell that changes the code, and the name of what differs."""


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    """Return a notebook whose cells have run; settings are restored after the test."""
    import decimal

    import torch

    made = Notebook(ModuleType("notebook_of_cells"))
    monkeypatch.setitem(sys.modules, "notebook_of_cells", made._module)
    for cell in (CONSTANT, HELPER, MODEL, TRAINER):
        made.run(cell)
    errors, precision = np.geterr(), decimal.getcontext().prec
    yield made
    np.seterr(**errors)
    decimal.getcontext().prec = precision
    torch.set_default_dtype(torch.float32)


def open_study(trainer: Any, folder: Path, **options: Any) -> dt.Study:
    given = {"name": "note", "metric": "loss", "storage": folder / "store", **options}
    return dt.create_study(trainer, direction="minimize", **given)


def grid(*values: float) -> dt.algos.Grid:
    return dt.algos.Grid(dt.Space(x=list(values)), max_steps=1)


def optimize(study: dt.Study, client: Client, *values: float) -> dict[float, float]:
    """Return the loss of each trained value."""
    study.optimize(grid(*values), client=client, progress=False, last_line=False)
    return {trial.params["x"]: trial.value for trial in study.trials}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_code_of_an_open_study_is_refused(
    name: str, notebook: Notebook, tmp_path: Path, two_threads: Client
) -> None:
    study, (cell, named) = open_study(notebook.Net, tmp_path), CHANGES[name]
    assert optimize(study, two_threads, 1.0) == {1.0: 2.0}
    stored = len(study.results.stages())
    notebook.run(cell)
    for use in (
        lambda: optimize(study, two_threads, 1.0, 2.0),
        lambda: study.evaluate({"x": 3.0}, 1, client=two_threads),
    ):
        with pytest.raises(ConfigurationError, match=f"changed since then: .*{named}"):
            use()
    with pytest.raises(ConfigurationError, match="if_changed='new'"):
        optimize(study, two_threads, 2.0)
    assert len(study.results.stages()) == stored
    assert len(study.trials) == 1
    study.close()


def test_changed_code_gets_a_version_of_its_own(
    notebook: Notebook, tmp_path: Path, two_threads: Client
) -> None:
    study = open_study(notebook.Net, tmp_path)
    assert optimize(study, two_threads, 1.0) == {1.0: 2.0}
    notebook.run("K = 3.0")
    with pytest.raises(ConfigurationError, match="changed since then: constant K"):
        optimize(study, two_threads, 2.0)
    new = open_study(notebook.Net, tmp_path, if_changed="new")
    assert new.name == "note-2"
    assert optimize(new, two_threads, 1.0, 2.0) == {1.0: 3.0, 2.0: 6.0}
    notebook.run(CONSTANT)
    assert optimize(study, two_threads, 1.0, 2.0) == {1.0: 2.0, 2.0: 4.0}
    new.close()
    study.close()


def test_unchanged_code_is_not_computed_again(
    notebook: Notebook, tmp_path: Path, two_threads: Client
) -> None:
    study = open_study(notebook.Net, tmp_path)
    code = study.parts.code
    for values in ([1.0], [1.0, 2.0]):
        optimize(study, two_threads, *values)
    assert code.computed == 0
    notebook.run("OTHER = 1")
    optimize(study, two_threads, 3.0)
    assert code.computed == 0
    study.close()


@pytest.mark.parametrize("cells", [(CONSTANT,), (HELPER,), (MODEL,), (TRAINER,), (CONSTANT, MODEL)])
def test_a_cell_that_runs_again_unchanged_is_silent(
    cells: tuple[str, ...], notebook: Notebook, tmp_path: Path
) -> None:
    study = open_study(notebook.Net, tmp_path)
    code = study.parts.code
    for cell in cells:
        notebook.run(f"# Another comment.\n{cell}")
    assert code.problem() is None
    computed = code.computed
    assert computed > 0
    assert code.problem() is None
    assert code.computed == computed
    study.close()


@pytest.mark.parametrize("kind", ["function", "objective", "decorated objective"])
def test_functions_and_objectives_are_compared_by_name(
    kind: str, notebook: Notebook, tmp_path: Path
) -> None:
    name = "train" if kind == "function" else "objective"
    if kind == "decorated objective":
        notebook.run("objective = dt.from_optuna(objective)")
    given = getattr(notebook, name)
    trainer = dt.from_optuna(given) if kind == "objective" else given
    metric = "loss" if kind == "function" else "value"
    study = open_study(trainer, tmp_path, metric=metric)
    code = study.parts.code
    assert code.problem() is None
    assert code.computed == 0
    notebook.run(TRAINER)
    assert code.problem() is None
    notebook.run(TRAINER.replace("Model().value(", "1 + Model().value("))
    changed = code.problem() or ""
    assert f"function {name}" in changed
    notebook.run(f"{name} = 3")
    assert code.problem() is None, "it is no trainer any more"
    study.close()


def test_names_that_are_found_in_other_ways_are_compared(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import math

    monkeypatch.setattr(math, "tau", 1.0)
    cell = """
        import math
        math.tau = 6.0
        WIDTH, NESTED, MIXED = 1, ({"a": [1]},), {"b": {1, 2}}
        class Slots:
            __slots__ = ("k",)
        SLOTS = Slots()
        SLOTS.k = 1
        class Wide(Net):
            def width(self):
                return globals()["WIDTH"], NESTED, MIXED, SLOTS
        """
    notebook.run(cell)
    study = open_study(notebook.Wide, tmp_path)
    code = study.parts.code
    assert code.problem() is None
    assert code.computed == 0
    changes = {
        "WIDTH = 2": "WIDTH = 1",
        "NESTED[0]['a'].append(2)": "NESTED[0]['a'].pop()",
        "MIXED['b'].add(3)": "MIXED['b'].discard(3)",
        "SLOTS.k = 2": "SLOTS.k = 1",
        "math.tau = 7.0": "math.tau = 6.0",
        "Wide.width.note = 1": "del Wide.width.note",
        "Wide.width.__defaults__ = (1,)": "Wide.width.__defaults__ = None",
    }
    for change, back in changes.items():
        notebook.run(change)
        assert code.problem() is not None, change
        notebook.run(back)
        assert code.problem() is None, back
    study.close()


def test_depends_on_is_compared_by_name(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("def other():\n    return 1")
    study = open_study(notebook.Net, tmp_path, depends_on=[notebook.other])
    notebook.run("def other():\n    return 1")
    assert study.parts.code.problem() is None
    notebook.run("def other():\n    return 2")
    assert "function other" in (study.parts.code.problem() or "")
    study.close()


def test_a_run_in_this_process_changes_no_code(
    notebook: Notebook, tmp_path: Path, two_threads: Client, caplog: pytest.LogCaptureFixture
) -> None:
    study = open_study(notebook.Net, tmp_path)
    run_alone(notebook.Net, {"x": 1.0}, 3)
    assert (notebook.COUNT, notebook.DRAWN) == ({"n": 3}, 3)
    caplog.set_level(logging.WARNING, logger="dasktune")
    assert optimize(study, two_threads, 1.0) == {1.0: 2.0}
    assert "COUNT and DRAWN" in caplog.text
    assert "begin with the first value" in caplog.text
    again = open_study(notebook.Net, tmp_path, load_if_exists=True)
    notebook.run("COUNT = {'n': 7}")
    with pytest.raises(ConfigurationError, match="constant COUNT"):
        optimize(again, two_threads, 2.0)
    again.close()
    study.close()


def test_workers_begin_with_the_first_values(notebook: Notebook) -> None:
    from dasktune.trainer import fingerprint, pack, unpack

    before = fingerprint(notebook.Net, {})
    run_alone(notebook.Net, {"x": 1.0}, 3)
    assert fingerprint(notebook.Net, {}) == before
    sent = unpack(pack(notebook.Net))
    names = sent.train.__globals__
    assert (names["COUNT"], names["DRAWN"]) == ({"n": 0}, 0)


def test_reloaded_module_is_refused_and_an_edited_file_is_not(
    tmp_path: Path, two_threads: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    with without_bytecode():
        path, helper = tmp_path / "net_of_file.py", tmp_path / "helper_of_file.py"
        helper.write_text(f"{CONSTANT}\n{HELPER}")
        path.write_text(f"from helper_of_file import *\n{MODEL}\n{TRAINER}")
        net = importlib.import_module("net_of_file")
        monkeypatch.setitem(sys.modules, "net_of_file", net)
        beside = importlib.import_module("helper_of_file")
        monkeypatch.setitem(sys.modules, "helper_of_file", beside)
        study = open_study(net.Net, tmp_path)
        assert optimize(study, two_threads, 1.0) == {1.0: 2.0}
        path.write_text("# A line more.\n" + path.read_text().replace("+ self.bias", "- self.bias"))
        assert optimize(study, two_threads, 2.0) == {1.0: 2.0, 2.0: 4.0}
        trainer = net.Net
        trainer.note = "counts"  # so that the fingerprint is computed again
        with pytest.raises(ConfigurationError, match="changed since then: class Net"):
            optimize(study, two_threads, 3.0)
        del trainer.note
        importlib.reload(net)
        with pytest.raises(ConfigurationError, match="changed since then: class Model"):
            optimize(study, two_threads, 3.0)
    study.close()


def test_changed_data_are_refused(notebook: Notebook, tmp_path: Path) -> None:
    data = tmp_path / "data.txt"
    data.write_text("1")
    notebook.run(
        dedent(
            f"""
            from dasktune.trainer import data_digest
            class OnData(Net):
                @classmethod
                def fingerprint_data(cls, config):
                    return data_digest({str(data)!r})
            """
        )
    )
    study = open_study(notebook.OnData, tmp_path)
    assert study.parts.code.problem() is None
    data.write_text("12")
    assert "changed since then: data" in (study.parts.code.problem() or "")
    study.close()


def test_changed_code_trains_no_state_again(
    notebook: Notebook, tmp_path: Path, two_threads: Client
) -> None:
    study = open_study(notebook.Net, tmp_path, load_if_exists=True)
    optimize(study, two_threads, 1.0)
    notebook.run("K = 3.0")
    states = study._exports._states(0)
    assert "changed since then: constant K" in states._training.problem
    study.close()
