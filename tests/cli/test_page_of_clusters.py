"""Tests that run the examples of docs/clusters.md."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any

import dask
import pytest

import dasktune as dt
from dasktune.cli.target import RunSettings, run_settings
from dasktune.sequences import Constant
from tests.holding import wait_until
from tests.pages import blocks, python_blocks
from tests.toy_trainers import Counting

from .conftest import PATIENCE, Folder

pytestmark = [pytest.mark.cluster, pytest.mark.process]

PAGE = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text()


class Digits(Counting):
    """Has another loss on a GPU."""

    def evaluate(self) -> dict[str, float]:
        return {"loss": float(self.device == "cuda") + self.total}


class Net(dt.TorchTrainer):
    """Lets several devices train it together."""

    divides = True

    def build(self, hp: Any) -> None: ...

    def setup(self, hp: Any) -> None: ...

    def train(self) -> None: ...

    def evaluate(self) -> dict[str, float]:
        return {"loss": 0.0}


def test_the_python_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    names: dict[str, Any] = {"Digits": Digits, "Net": Net, "dt": dt}
    for number, block in enumerate(python_blocks("clusters.md")):
        # Each with trials of its own, or there is nothing left to do.
        lrs = [Constant(number + 0.1), Constant(number + 0.2)]
        names["study"] = dt.create_study(Digits, name=f"study {number}", metric="loss")
        names["tuner"] = dt.algos.Grid(dt.Space(lr=lrs[:1]), max_steps=2)
        names["another"] = dt.algos.Grid(dt.Space(lr=lrs), max_steps=2)
        # A worker that was forked from here has torch loaded, and asks it for GPUs.
        with dask.config.set({"distributed.worker.multiprocessing-method": "spawn"}):
            exec(compile(block, "clusters.md", "exec"), names)
    assert names["needy"].best_value == 3  # after two steps on a GPU
    assert names["study"].trials == []


def test_page_commands_start_an_encrypted_cluster_for_a_study(folder: Folder) -> None:
    script, run = (block for block in blocks("clusters.md", "bash") if "pem" in block)
    (folder.path / "counting.py").rename(folder.path / "study.py")
    openssl, *daemons = map(shlex.split, script.splitlines())
    subprocess.run(openssl, cwd=folder.path, check=True, capture_output=True)
    with ExitStack() as stack:
        for _, kind, *options in daemons:
            here = ["--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0"]
            port = ["--port", "0"] if kind == "scheduler" else []
            command = [sys.executable, "-m", f"distributed.cli.dask_{kind}"]
            log = stack.enter_context((folder.path / f"{kind}.log").open("w"))
            process = subprocess.Popen(
                [*command, *options, *here, *port], cwd=folder.path, stdout=log, stderr=log
            )
            stack.callback(process.wait, PATIENCE)
            stack.callback(process.terminate)
            wait_until((folder.path / "scheduler.json").exists, process)
        done = folder.command(*shlex.split(run)[1:], "--no-report")
        assert done.returncode == 0, done.stderr
        (toml,) = blocks("clusters.md", "toml")
        (folder.path / "dasktune.toml").write_text(toml)
        done = folder.command("run", "study.py", "--no-report")
        assert done.returncode == 0, done.stderr


def test_the_page_lists_each_key_of_the_table(tmp_path: Path) -> None:
    (toml,) = blocks("clusters.md", "toml")
    (tmp_path / "dasktune.toml").write_text(toml)
    assert run_settings(tmp_path, {}).step_timeout == 600
    table = PAGE[PAGE.index("| key |") :]
    listed = {
        name.replace("-", "_")
        for row in table.splitlines()
        for name in re.findall(r"`([a-z-]+)`", row.split("|")[1] if "|" in row else "")
    }
    assert listed == {one.name for one in fields(RunSettings)}
