"""Studies in a real kernel of a notebook: edited cells, progress, interrupts, awaited runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.holding import PATIENCE, wait_until

pytestmark = [
    pytest.mark.framework("ipykernel", "nbclient"),
    pytest.mark.filterwarnings("ignore"),
]

ROOT = Path(__file__).parents[2]

FIRST = """
import asyncio
from pathlib import Path

import dasktune as dt
from dasktune.algos import Grid

def options(name):
    config = {"hold": f"{name}.hold"}
    return {"name": name, "metric": "loss", "storage": f"runs-{name}", "config": config}
"""

TRAINER = """
class Note(dt.Trainer):
    ignored_config = ("hold",)

    def build(self, hp):
        self.total, self.steps, self.lr = 0.0, 0, hp["lr"]

    def train(self):
        self.total += self.lr
        self.steps += 1
        if self.steps == 3 and Path(self.config["hold"]).exists():
            hold_until_the_order_to_stop(self.config["hold"])

    def evaluate(self):
        return {"loss": self.total}

    def state_dict(self):
        return {"total": self.total, "steps": self.steps}

    def load_state_dict(self, state):
        self.total, self.steps = state["total"], state["steps"]

def hold_until_the_order_to_stop(name):
    from distributed import get_worker
    from tests.holding import stop_order, wait_until
    Path(name).with_suffix(".begun").touch()
    wait_until(stop_order([get_worker()]))
"""

TUNER = "tuner = Grid(dt.Space(lr=[0.1, 0.2]), max_steps=6)"
HOW = "workers=1, check=False"


class Notebook:
    """A kernel in a folder, and the outputs of its cells."""

    def __init__(self, folder: Path) -> None:
        import nbformat
        from nbclient import NotebookClient

        self.folder = folder
        self._new_cell = nbformat.v4.new_code_cell
        self._book = nbformat.v4.new_notebook()
        self._client = NotebookClient(
            self._book, timeout=PATIENCE, kernel_name="python3", allow_errors=True
        )
        self._runner = asyncio.Runner()
        # A kernel in a test of pytest leaves out what the system writes to standard error.
        variables = {name: text for name, text in os.environ.items() if "PYTEST" not in name}
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self._kernel = self._client.async_setup_kernel(
            env={**variables, "PYTHONPATH": path}, cwd=str(folder)
        )
        self._runner.run(self._kernel.__aenter__())

    def close(self) -> None:
        """End the kernel."""
        self._runner.run(self._kernel.__aexit__(None, None, None))
        self._runner.close()

    def run(self, source: str, *, interrupt_at: str = "") -> str:
        """Run a cell; return its outputs, one a line, with their kinds before them.

        With `interrupt_at` the kernel is interrupted, as by the button, once that file is there.
        """
        return self._runner.run(self._run(source, interrupt_at))

    async def _run(self, source: str, interrupt_at: str) -> str:
        cell = self._new_cell(source)
        self._book.cells.append(cell)
        index = len(self._book.cells) - 1
        running = asyncio.create_task(self._client.async_execute_cell(cell, index))
        if interrupt_at:
            is_there = (self.folder / interrupt_at).exists
            await asyncio.to_thread(wait_until, lambda: is_there() or running.done())
            assert not running.done(), shown(cell.outputs)
            await self._client.km.interrupt_kernel()
        await running
        return shown(cell.outputs)


def shown(outputs: list[Any]) -> str:
    lines = []
    for output in outputs:
        if output.output_type == "stream":
            lines.append(f"{output.name}: {output.text}")
        elif output.output_type == "error":
            lines.append(f"error: {output.ename}: {output.evalue}")
        else:
            lines += [f"{kind}: {text}" for kind, text in output.data.items()]
    return "\n".join(lines)


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    made = Notebook(tmp_path_factory.mktemp("notebook"))
    try:
        for cell in (FIRST, TRAINER, TUNER):
            assert made.run(cell) == ""
        yield made
    finally:
        made.close()


CHANGED = "must train the code with which it was opened; changed since then: class Note."


def opened(name: str) -> str:
    return f'study = dt.create_study(Note, **options("{name}"), if_changed="new")'


def test_an_edited_class_makes_the_next_version(notebook: Notebook) -> None:
    notebook.run(opened("note"))
    notebook.run(f"study.optimize(tuner, {HOW})")
    assert notebook.run("print(study.name, round(study.best_value, 9))") == "stdout: note 0.6\n"
    notebook.run(f"# The cell is run again.\n{TRAINER}")
    assert CHANGED not in notebook.run(f"study.optimize(tuner, {HOW})")
    assert notebook.run(opened("note")) == ""
    assert notebook.run("study.name") == "text/plain: 'note'"
    notebook.run(TRAINER.replace("+= self.lr", "+= 2 * self.lr"))
    assert CHANGED in notebook.run(f"study.optimize(tuner, {HOW})")
    assert "study note-2 is a new version of note; what differs:" in notebook.run(opened("note"))
    notebook.run(f"study.optimize(tuner, {HOW})")
    assert notebook.run("print(study.name, round(study.best_value, 9))") == "stdout: note-2 1.2\n"
    notebook.run(TRAINER)
    notebook.run(opened("note"))
    assert notebook.run("study.name, len(study.trials)") == "text/plain: ('note', 2)"


def test_a_cell_shows_progress_and_results(notebook: Notebook) -> None:
    notebook.run(opened("shown"))
    progress = notebook.run(f"study.optimize(tuner, {HOW})")
    assert "text/html: <pre>shown" in progress
    assert "2 complete" in progress
    assert notebook.run("study").count("<table") == 1
    assert "<svg" in notebook.run("study.trials[0]")
    page = notebook.run("study.report()")
    assert "text/html: <iframe srcdoc=" in page
    assert "report-shown.html" in page


def test_an_interrupted_cell_goes_on_where_it_was(notebook: Notebook) -> None:
    notebook.run(opened("interrupted"))
    (notebook.folder / "interrupted.hold").touch()
    cell = f"study.optimize(tuner, {HOW})"
    output = notebook.run(cell, interrupt_at="interrupted.begun")
    assert output.endswith("error: KeyboardInterrupt: ")
    assert notebook.run('study.summary()["steps_executed"]') == "text/plain: 3"
    (notebook.folder / "interrupted.hold").unlink()
    assert "error" not in notebook.run(cell)
    assert notebook.run(FIGURES) == "stdout: 12 0 {'COMPLETE'}\n"


FIGURES = """
figures = study.summary()
print(figures["steps_executed"], figures["steps_repeated"], {t.state.name for t in study.trials})
"""


@pytest.mark.parametrize("how", ["cancelled", "interrupted"])
def test_an_awaited_run_that_ends_early_goes_on(notebook: Notebook, how: str) -> None:
    name = f"awaited_{how}"
    notebook.run(opened(name))
    (notebook.folder / f"{name}.hold").touch()
    if how == "cancelled":
        notebook.run(f"run = asyncio.create_task(study.optimize_async(tuner, {HOW}))")
        notebook.run(f"while not Path('{name}.begun').exists(): await asyncio.sleep(0.01)")
        output = notebook.run("run.cancel(); await run")
        assert output.endswith("error: CancelledError: ")
    else:
        cell = f"await study.optimize_async(tuner, {HOW})"
        output = notebook.run(cell, interrupt_at=f"{name}.begun")
        assert output.endswith("error: CancelledError: ")
    assert notebook.run('study.summary()["steps_executed"]') == "text/plain: 3"
    (notebook.folder / f"{name}.hold").unlink()
    again = notebook.run(f"await study.optimize_async(tuner, {HOW})")
    assert f"text/html: <pre>{name}" in again
    assert notebook.run(FIGURES) == "stdout: 12 0 {'COMPLETE'}\n"
