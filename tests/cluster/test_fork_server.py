"""The fork server: forked workers are as new interpreters are, where a study could notice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dasktune.cluster import fork_server

SCRIPT = """
import atexit, json, os, signal, sys
from pathlib import Path
import numpy as np
from dasktune.cluster import fork_server
from dasktune.cluster.local import local_client

def describe(folder):
    note = Path(folder, f"{os.getpid()}.end")
    atexit.register(note.touch)
    held = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    seen = {"late": os.environ.get("LATE"), "hash": hash("dasktune"), "parent": os.getppid()}
    return {**seen, "draw": np.random.random(), "is_held": signal.SIGINT in held}

if __name__ == "__main__":
    fork_server.start()
    os.environ["LATE"] = "here"
    with local_client(2) as client:
        workers = list(client.run(describe, os.path.dirname(__file__)).values())
    driver = {"driver": os.getpid(), "pandas": "pandas" in sys.modules}
    print(json.dumps({**driver, "workers": workers}))
"""


def workers_of(folder: Path, **environment: str) -> dict[str, Any]:
    """Return the output of a program that starts workers, in an interpreter of its own."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    own = {name: value for name, value in os.environ.items() if name != fork_server.SWITCH}
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**own, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


@pytest.mark.process
def test_forked_workers_are_as_new_interpreters(tmp_path: Path) -> None:
    seen = workers_of(tmp_path)
    first, second = seen["workers"]
    assert first["parent"] == second["parent"] != seen["driver"]
    assert first["draw"] != second["draw"], "each has its own state of NumPy's generator"
    assert first["hash"] == second["hash"]
    assert first["is_held"], "ctrl-C in a terminal reaches the driver alone"
    assert first["late"] == "here", "a variable that was set after the server had begun"
    assert len(list(tmp_path.glob("*.end"))) == 2, "what is to be called at their end was called"
    assert not seen["pandas"], "the driver imports nothing for the server"


@pytest.mark.process
def test_other_threads_of_numpy_need_interpreters(tmp_path: Path) -> None:
    setting = {"DASK_DISTRIBUTED__NANNY__PRE_SPAWN_ENVIRON__OMP_NUM_THREADS": "2"}
    seen = workers_of(tmp_path, **setting)
    assert {worker["parent"] for worker in seen["workers"]} == {seen["driver"]}


def test_server_is_only_for_its_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "_STARTED", {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"})
    assert fork_server.serves({"OMP_NUM_THREADS": "1"})
    assert not fork_server.serves({"OMP_NUM_THREADS": "2"})
    assert not fork_server.serves({"MKL_NUM_THREADS": "1"})
    monkeypatch.setattr(fork_server, "_STARTED", {})
    assert not fork_server.serves({})
