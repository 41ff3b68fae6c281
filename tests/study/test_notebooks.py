"""A study in a notebook: versions by code, an awaited run, plots, progress in a cell."""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from distributed import Client

import dasktune as dt
from dasktune._study.displayed import in_notebook
from dasktune.algos import Grid
from dasktune.errors import ConfigurationError
from dasktune.report.progress import CellOutput
from dasktune.trainer.fingerprint.fingerprint import fingerprint
from dasktune.trainer.given import as_trainer
from tests.holding import PATIENCE
from tests.study.cells import Notebook
from tests.toy_trainers import Adding

SPACE = dt.Space(lr=[0.1, 0.2, 0.3])


def edited() -> type[Adding]:
    """Return a class of the same name with other code, as after a change in a cell."""

    class Changed(Adding):
        def train(self) -> None:
            self.total += 2 * self.lr

    Changed.__qualname__ = Changed.__name__ = "Adding"
    return Changed


def version(trainer: type, folder: Path, **options: Any) -> str:
    study = dt.create_study(
        trainer, name="note", metric="loss", storage=folder, if_changed="new", **options
    )
    study.close()
    return study.name


def test_changed_code_makes_the_next_version(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="dasktune")
    assert [version(Adding, tmp_path) for _ in range(2)] == ["note", "note"]
    assert "version" not in caplog.text
    assert version(edited(), tmp_path) == "note-2"
    assert "study note-2 is a new version of note; what differs:" in caplog.text
    assert version(edited(), tmp_path) == "note-2"
    assert version(Adding, tmp_path, config={"width": 2}) == "note-3"
    assert version(Adding, tmp_path) == "note"


def test_a_version_keeps_the_metric_of_its_study(tmp_path: Path) -> None:
    version(Adding, tmp_path)
    with pytest.raises(ConfigurationError, match="with seed 0, got seed 1"):
        version(Adding, tmp_path, seed=1)
    with pytest.raises(ConfigurationError, match=r"if_changed 'newest'"):
        dt.create_study(Adding, name="n", metric="loss", storage=tmp_path, if_changed="newest")


def test_a_version_is_in_the_default_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for trainer in (Adding, edited()):
        study = dt.create_study(
            trainer, name="note", metric="loss", database="d.db", storage="s", if_changed="new"
        )
        study.close()
    assert study.study_config.store_url.endswith("s")
    assert study.name == "note-2"


def test_an_awaited_run_lets_others_go_on(tmp_path: Path) -> None:
    study = dt.create_study(Adding, name="note", metric="loss", storage=tmp_path)

    async def both(client: Client) -> int:
        run = asyncio.create_task(
            study.optimize_async(Grid(SPACE, max_steps=2), client=client, check=False)
        )
        turns = 0
        while not run.done():
            await asyncio.sleep(0)
            turns += 1
        await run
        return turns

    with Client(
        processes=False, n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0"
    ) as c:
        assert asyncio.run(both(c)) > 1
    assert len(study.trials) == 3
    assert study.best_value == pytest.approx(0.2)
    study.close()


class Failing(Grid):
    """Raises an error once the task that awaits it was cancelled."""

    begun, cancelled = threading.Event(), threading.Event()

    def tell(self, report: dt.types.Report) -> list[dt.types.Decision]:
        self.begun.set()
        assert self.cancelled.wait(PATIENCE)
        raise ZeroDivisionError


def test_a_cancelled_run_does_not_lose_an_error(tmp_path: Path) -> None:
    study = dt.create_study(Adding, name="note", metric="loss", storage=tmp_path)

    async def cancel(client: Client) -> None:
        tuner = Failing(SPACE, max_steps=2)
        run = asyncio.create_task(study.optimize_async(tuner, client=client, check=False))
        await asyncio.to_thread(Failing.begun.wait, PATIENCE)
        run.cancel()
        Failing.cancelled.set()
        await run

    with (
        Client(
            processes=False, n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0"
        ) as c,
        pytest.raises(ZeroDivisionError),
    ):
        asyncio.run(cancel(c))
    study.close()


def test_a_cell_keeps_the_last_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interface of IPython is replaced; `tests/integrations` has the real one."""
    shown: list[str] = []
    handle = SimpleNamespace(update=lambda data, raw: shown.append(data["text/html"]))

    def show(data: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        shown.append(data["text/html"])
        return handle

    module: Any = ModuleType("IPython")
    module.get_ipython = lambda: SimpleNamespace(kernel=object())
    part: Any = ModuleType("IPython.display")
    part.display = show
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", part)
    assert in_notebook()
    output = CellOutput()
    output.update("3 < 4")
    output.update("done")
    assert shown == ["<pre>3 &lt; 4</pre>", "<pre>done</pre>"]


CELL = """
import time
import numpy as np
import dasktune as dt

class Net(dt.Trainer):
    def build(self, hp):
        self.total = float(np.zeros(1)[0])

    def train(self):
        time.sleep(0)
        self.total += sum(np.float64(each) for each in (1, 2))

    def evaluate(self):
        return {"loss": self.total}

    def state_dict(self):
        return {"total": self.total}

    def load_state_dict(self, state):
        self.total = state["total"]

def train(run):
    total = lambda: np.float64(1) + time.time() * 0
    for _ in run.steps():
        run.report(loss=total())
"""


def test_cell_with_its_imports_has_no_gap_of_source(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("cells_with_imports")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    notebook = Notebook(module)
    notebook.run(CELL)
    trainers = [notebook.Net, as_trainer(notebook.train)]
    gaps = [fingerprint(trainer, {}).gaps for trainer in trainers]
    assert not [name for each in gaps for name in each if "source" in name]
    notebook.run(CELL.replace("sleep(0)", "sleep(0.0)"))
    assert fingerprint(notebook.Net, {}).digest != fingerprint(trainers[0], {}).digest


def test_definition_that_was_edited_after_its_import_has_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "edited_after_import.py"
    file.write_text(CELL)
    module = importlib.import_module(file.stem)
    file.write_text(CELL.replace("time.sleep(0)", "time.sleep(1)"))
    gaps = fingerprint(module.Net, {}).gaps
    assert [name for name in gaps if "source" in name] == ["Net.train: its source"]
