"""The fork server: forked workers are as new interpreters are, where a study could notice."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import distributed
import psutil
import pytest
from packaging.version import Version

from dasktune._cluster import fork_server

SCRIPT = """
import atexit, json, os, signal, sys
from pathlib import Path
import numpy as np
from distributed import utils
from dasktune._cluster import fork_server
from dasktune._cluster.local import local_client

def describe(folder):
    note = Path(folder, f"{os.getpid()}.end")
    atexit.register(note.touch)
    sys.open_log = note.with_suffix(".log").open("w")
    sys.open_log.write("never closed")
    sys.open_both = note.with_suffix(".both.log").open("w+b")
    sys.open_both.write(b"never closed")
    held = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    replaced = {name: os.environ.get(name) for name in ("PYTHONPATH", "PYTHONSAFEPATH")}
    seen = {"replaced": replaced, "hash": hash("dasktune"), "parent": os.getppid()}
    return {**seen, "draw": np.random.random(), "is_held": signal.SIGINT in held}

if __name__ == "__main__":
    fork_server.start()
    utils._offload_executor.submit(int).result()  # as for each large message
    if not (child := os.fork()):
        os._exit(fork_server.serves({}) or utils._offload_executor.submit(int).result(30))
    with local_client(2) as client:
        workers = list(client.run(describe, os.path.dirname(__file__)).values())
    served_child = os.waitpid(child, 0)[1]
    driver = {"driver": os.getpid(), "pandas": "pandas" in sys.modules}
    print(json.dumps({**driver, "served_child": served_child, "workers": workers}))
"""


FORK = """
import os, sys
import dasktune as dt
from tests.toy_trainers import Adding

def run(name):
    study = dt.create_study(Adding, name=name, metric="loss", direction="minimize", storage=name)
    tuner = dt.algos.Grid(dt.Space(lr=[0.1, 0.2]), max_steps=2)
    study.optimize(tuner, workers=1, check=False, progress=False, last_line=False)
    return [trial.steps for trial in study.trials]

if __name__ == "__main__":
    trained = run("parent")
    if not (child := os.fork()):
        os._exit(run("child") != trained)
    sys.exit(os.waitpid(child, 0)[1] or trained != [2, 2])
"""

PATH = os.pathsep.join(sys.path)


def workers_of(folder: Path, **environment: str) -> dict[str, Any]:
    """Return the output of a program that starts workers, in an interpreter of its own."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    working = folder / "working"
    working.mkdir()
    (working / "distributed.py").touch()  # is on the path of `python -c` alone
    own = {name: value for name, value in os.environ.items() if name != fork_server.SWITCH}
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=working,
        env={**own, "PYTHONPATH": PATH, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


@pytest.mark.process
def test_forked_workers_are_as_new_interpreters(tmp_path: Path) -> None:
    seen = workers_of(tmp_path, PYTHONHASHSEED="1")
    first, second = seen["workers"]
    assert first["parent"] == second["parent"] != seen["driver"]
    assert first["draw"] != second["draw"], "each has its own state of NumPy's generator"
    seed = {**os.environ, "PYTHONHASHSEED": "6640"}  # as Dask sets it, whatever the user has set
    program = [sys.executable, "-c", "print(hash('dasktune'))"]
    value = int(subprocess.run(program, env=seed, capture_output=True, check=True).stdout)
    assert first["hash"] == second["hash"] == value
    assert first["is_held"], "ctrl-C in a terminal reaches the driver alone"
    assert first["replaced"] == {"PYTHONPATH": PATH, "PYTHONSAFEPATH": None}
    logs = [log.read_text() for log in tmp_path.glob("*.log")]
    assert logs == ["never closed"] * 4
    assert seen["served_child"] == 0, "the server is no child of a fork"
    assert len(list(tmp_path.glob("*.end"))) == 2, "what is to be called at their end was called"
    if Version(distributed.__version__) >= Version("2025.4"):  # older ones look for its version
        assert not seen["pandas"], "the driver imports nothing for the server"


@pytest.mark.process
def test_server_ends_at_once_with_its_driver(tmp_path: Path) -> None:
    (tmp_path / "slow_to_end.py").write_text(
        "import atexit, threading\natexit.register(threading.Event().wait)\n"
    )
    (tmp_path / "script.py").write_text(
        "from dasktune._cluster import fork_server\n"
        "fork_server.LIBRARIES = ('slow_to_end', *fork_server.LIBRARIES)\n"
        "fork_server.start()\n"
    )
    own = {name: value for name, value in os.environ.items() if name != fork_server.SWITCH}
    # The server has the same output: to read it to its end is to wait for the server's end.
    subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**own, "PYTHONPATH": PATH},
        capture_output=True,
        check=True,
        timeout=60,
    )


@pytest.mark.process
def test_study_in_a_fork_of_a_driver_runs(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(FORK)
    subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": PATH},
        check=True,
        timeout=120,
    )


@pytest.mark.process
def test_other_threads_of_numpy_need_interpreters(tmp_path: Path) -> None:
    setting = {"DASK_DISTRIBUTED__NANNY__PRE_SPAWN_ENVIRON__OMP_NUM_THREADS": "2"}
    seen = workers_of(tmp_path, **setting)
    assert {worker["parent"] for worker in seen["workers"]} == {seen["driver"]}


def test_server_is_only_for_its_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not fork_server.serves({})
    monkeypatch.setattr(fork_server, "_STARTED", fork_server.inherited())
    assert fork_server.serves({"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")})
    assert not fork_server.serves({"OMP_NUM_THREADS": "99"})
    assert not fork_server.serves({"NEW": "1"})
    monkeypatch.setenv("LATE", "read by the script")
    assert not fork_server.serves({})


LIMITED = """
import os, resource, sys
from dasktune._cluster import fork_server
from dasktune._cluster.local import local_client

def setting(change):
    return {
        "limit": lambda: resource.getrlimit(resource.RLIMIT_NOFILE),
        "cpus": lambda: sorted(os.sched_getaffinity(0)),
    }[change]()

def set_anew(change):
    if change == "limit":
        files = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files[0] - 1, files[1]))
    elif len(os.sched_getaffinity(0)) > 1:
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    else:
        sys.exit()

if __name__ == "__main__":
    fork_server.start()
    assert fork_server.serves({})
    set_anew(change := sys.argv[1])
    with local_client(1) as client:
        (of_worker,) = client.run(setting, change).values()
    assert of_worker == setting(change), of_worker
    assert not fork_server.serves({})
"""


@pytest.mark.process
@pytest.mark.parametrize("change", ["limit", "cpus"])
def test_workers_have_the_settings_of_a_changed_driver(tmp_path: Path, change: str) -> None:
    (tmp_path / "script.py").write_text(LIMITED)
    own = {name: value for name, value in os.environ.items() if name != fork_server.SWITCH}
    done = subprocess.run(
        [sys.executable, "script.py", change],
        cwd=tmp_path,
        env={**own, "PYTHONPATH": PATH},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.process
def test_server_that_cannot_start_is_done_without(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    program = "from dasktune._cluster import fork_server as it; it.start(); print(it.serves({}))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, fork_server.SWITCH: "on", "TMPDIR": str(folder), "PYTHONPATH": PATH},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"


@pytest.mark.process
def test_server_that_python_replaces_imports_all() -> None:
    own = {name: value for name, value in os.environ.items() if name != fork_server.REPLACED}
    program = [sys.executable, "-c", f"import {fork_server.LIBRARIES[-1]}"]
    subprocess.run(program, env={**own, "PYTHONPATH": PATH}, check=True)


AHEAD = """
import os, sys
from contextlib import ExitStack
from multiprocessing import forkserver
from sklearn.datasets import load_digits
from distributed import Client, LocalCluster
import dasktune as dt
from tests.toy_trainers import Adding

class Own(Adding):
    pass

def server():
    return forkserver._forkserver._forkserver_pid

def client_of(stack):
    cluster = stack.enter_context(LocalCluster(1, processes=False, dashboard_address=None))
    return stack.enter_context(Client(cluster))

if __name__ == "__main__":
    how, client = sys.argv[1], None
    with ExitStack() as stack:
        if how == "client before":
            client = client_of(stack)
        for name in ("own", "other")[: 1 + how.startswith("two")]:
            study = dt.create_study(
                Own, name=name, metric="loss", direction="minimize", load_if_exists=True
            )
        ahead = server()
        if how.endswith("client after"):
            client = client_of(stack)
        elif how.endswith("changed"):
            os.environ["LATE"] = "read by the trainer"
        if how not in ("read", "never"):
            tuner = dt.algos.Grid(dt.Space(lr=[0.1]), max_steps=2)
            study.optimize(tuner, workers=None if client else 1, client=client, check=False)
            assert [trial.steps for trial in study.trials] == [2]
        print(server(), ahead is not None, server() is not None, server() == ahead)
"""


@pytest.mark.process
def test_server_starts_when_a_study_is_created(tmp_path: Path) -> None:
    own = {name: value for name, value in os.environ.items() if name != fork_server.SWITCH}
    (tmp_path / "script.py").write_text(AHEAD)
    seen = {}
    for how in (
        *("plain", "read", "changed", "client after", "client before", "never"),
        *("two, changed", "two, client after"),
    ):
        if how != "read":
            shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        done = subprocess.run(
            [sys.executable, "script.py", how],
            cwd=tmp_path,
            env={**own, "PYTHONPATH": PATH},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        last, *seen[how] = done.stdout.split()
        is_over = how != "never" or not psutil.pid_exists(int(last))
        assert is_over, "it ends before its driver, also while it imports"
    assert seen == {
        "plain": ["True", "True", "True"],
        "read": ["False", "False", "True"],
        "changed": ["True", "True", "False"],
        "client after": ["True", "False", "False"],
        "client before": ["False", "False", "True"],
        "never": ["True", "True", "True"],
        "two, changed": ["True", "True", "False"],
        "two, client after": ["True", "False", "False"],
    }


def test_cache_that_torch_chooses_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(fork_server.CACHE_OF_TORCH, raising=False)
    monkeypatch.setattr(fork_server, "_STARTED", fork_server.inherited())
    chosen = Path(tempfile.gettempdir(), "torchinductor_me")
    monkeypatch.setenv(fork_server.CACHE_OF_TORCH, str(chosen))
    assert fork_server.serves({})
    monkeypatch.setenv(fork_server.CACHE_OF_TORCH, "of the user")
    assert not fork_server.serves({})


SLIM = """
import sys
import dasktune as dt
from tests.toy_trainers import Adding

def loaded():
    return "sqlalchemy" in sys.modules

if __name__ == "__main__":
    study = dt.create_study(Adding, name="slim", metric="loss", direction="minimize")
    with dt.local_client(1) as client:
        tuner = dt.algos.Grid(dt.Space(lr=[0.1]), max_steps=2)
        study.optimize(tuner, client=client, last_line=False)
        print(*client.run(loaded).values())
"""


@pytest.mark.process
@pytest.mark.parametrize("is_forked", ["on", "off"])
def test_workers_import_no_database(tmp_path: Path, is_forked: str) -> None:
    (tmp_path / "script.py").write_text(SLIM)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, fork_server.SWITCH: is_forked, "PYTHONPATH": PATH},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["False"], done.stderr
