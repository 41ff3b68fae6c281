"""What the pages in docs/ show is run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dasktune as dt
from dasktune.types import TrialState

DOCS = Path(__file__).parents[1] / "docs"
TUNERS = (DOCS / "tuners.md").read_text()


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the page from its beginning to its end; return the names it has defined."""
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("docs"))
        for block in re.findall(r"```python\n(.*?)```", TUNERS, re.DOTALL):
            exec(compile(block, "tuners.md", "exec"), names)
    return names


def test_the_page_of_the_format_reads_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "checkpoint-format.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "checkpoint-format.md", "exec"), names)
    for found in (names["with_zarr"], names["with_numpy"]):
        assert found["state['weights']"].tolist() == names["state"]["weights"].tolist()
    assert names["document"]["state"] == {"dict": [["weights", {"tensor": 0}], ["epoch", 3]]}


def test_the_loop_in_the_page_tunes(shown: dict[str, Any]) -> None:
    trials = shown["study"].trials
    assert len(trials) == 32
    assert {one.state for one in trials} == {TrialState.COMPLETE, TrialState.PRUNED}
    assert shown["found"].summary()["trials"] == 32


class Falling(dt.Trainer):
    """A loss that falls with the learning rate."""

    def build(self, hp: Mapping[str, Any]) -> None:
        self.loss = 1.0

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp.get("lr", getattr(self, "lr", None))

    def train(self) -> None:
        self.loss *= 1 - self.lr / 2

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.loss}

    def state_dict(self) -> dict[str, Any]:
        return {"loss": self.loss, "lr": self.lr}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.loss, self.lr = state["loss"], state["lr"]


def test_the_run_in_the_page_runs(
    shown: dict[str, Any],
    tmp_path: Path,
    two_threads: Client,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown["tuner"] = dt.algos.ASHA(shown["space"], trials=8, max_steps=4)
    study = dt.create_study(Falling, name="falling", storage=tmp_path, metric="loss")
    shown["run"](study, two_threads)
    assert study.trials[0].params["lr"] == 0.1
    # The target of the page is reached by the first report: what runs is left where it is.
    ended = [one for one in study.trials if one.state.is_finished]
    assert len(capsys.readouterr().out.splitlines()) == len(ended)


def test_the_files_that_the_pages_link_are_there() -> None:
    for page in DOCS.glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (DOCS / target).exists(), target
