"""A study whose trainer's code has changed trains again, on the same store and database."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from distributed import Client

import dasktune as dt
from dasktune.sequences import Constant
from tests.study_folder import working_in

PROGRAM = """
    import dasktune as dt

    K = {default}

    def gain(by=K):
        return by

    K = 0
    {more}

    class Net(dt.Trainer):
        width = 1

        def build(self, hp):
            self.x = 0.0

        def setup(self, hp):
            pass

        def train(self):
            self.x += self.width * gain()

        def evaluate(self):
            return {{"loss": self.x}}

        def state_dict(self):
            return {{"x": self.x}}

        def load_state_dict(self, state):
            self.x = state["x"]

    Net.width = {width}
    """


class Program:
    """Loads the program from its file, and runs a study of it."""

    def __init__(self, folder: Path, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._client = client
        self._monkeypatch = monkeypatch

    def run(
        self, name: str, *, width: int = 1, default: int = 1, more: str = ""
    ) -> tuple[float | None, int]:
        """Return the result of a study, and the steps that it trained."""
        path = self._folder / "code_that_changes.py"
        # The line says which version it is: a file of equal size and time would not be read.
        path.write_text(
            dedent(PROGRAM.format(width=width, default=default, more=more)) + f"\n# {name}\n"
        )
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        self._monkeypatch.setitem(sys.modules, path.stem, module)
        spec.loader.exec_module(module)
        storage = self._folder / "store"
        study = dt.create_study(module.Net, name=name, storage=storage, metric="loss")
        tuner = dt.algos.Grid(dt.Space(lr=[Constant(0.1)]), max_steps=3)
        study.optimize(tuner, client=self._client, progress=False, last_line=False)
        try:
            return study.best_trial.value, study.summary()["steps_executed"]
        finally:
            study.close()


@pytest.fixture
def program(
    tmp_path: Path, two_threads: Client, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Program]:
    """Return a program that can be changed between studies."""
    with working_in(tmp_path):
        yield Program(tmp_path, two_threads, monkeypatch)


def test_class_attribute_set_after_the_class_trains_again(program: Program) -> None:
    assert program.run("first") == (3.0, 3)
    assert program.run("the same code") == (3.0, 0)
    assert program.run("another width", width=100) == (300.0, 3)
    assert program.run("as at first") == (3.0, 0)


def test_default_from_a_rebound_name_trains_again(program: Program) -> None:
    assert program.run("first") == (3.0, 3)
    assert program.run("another default", default=100) == (300.0, 3)


def test_code_that_cannot_be_followed_is_logged_once(
    program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    program.run("first")
    assert "cannot tell whether this stays the same" not in caplog.text
    program.run("with text", more="gain = lambda: eval('1')")
    assert caplog.text.count("cannot tell whether this stays the same") == 1
    assert "eval (runs text as code; change version when that changes)" in caplog.text
