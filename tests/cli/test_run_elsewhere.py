"""`dasktune run` on GPUs, and on clusters that are there: real processes, over TLS."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from distributed.security import Security

from tests.holding import wait_until

from .conftest import PATIENCE, UNIQUE, Folder

pytestmark = [pytest.mark.cluster, pytest.mark.process]

RUN = ("run", "counting.py", "--no-progress", "--no-report")


@contextmanager
def dask_process(folder: Path, kind: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a scheduler or worker meanwhile, on loopback and encrypted."""
    tls = ("--tls-ca-file", "ca.pem", "--tls-cert", "cert.pem", "--tls-key", "key.pem")
    here = ("--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0", "--protocol", "tls")
    module = f"distributed.cli.dask_{kind}"
    command = [sys.executable, "-m", module, *tls, *here, "--scheduler-file", "s.json", *options]
    with (folder / f"{kind}.log").open("w") as log:
        started = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            yield started
        finally:
            started.terminate()
            started.wait(PATIENCE)


@pytest.fixture
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the folder of an encrypted cluster of one worker, with its files."""
    folder = tmp_path_factory.mktemp("cluster")
    made = Security.temporary()
    (folder / "ca.pem").write_text(made.tls_ca_file)
    (folder / "cert.pem").write_text(made.tls_client_cert)
    (folder / "key.pem").write_text(made.tls_client_key)
    with dask_process(folder, "scheduler", "--port", "0") as scheduler:
        file = folder / "s.json"
        wait_until(lambda: file.exists() and file.read_text(), scheduler)
        with dask_process(folder, "worker", "--nthreads", "1", "--no-nanny"):
            yield folder


def test_an_encrypted_cluster_of_processes_runs_the_study(folder: Folder, encrypted: Path) -> None:
    address = json.loads((encrypted / "s.json").read_text())["address"]
    assert address.startswith("tls://127.0.0.1:")
    files = {name: str(encrypted / f"{name}.pem") for name in ("ca", "cert", "key")}
    flags = [word for name, path in files.items() for word in (f"--tls-{name}", path)]
    done = folder.command(*RUN, "--scheduler", address, *flags, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["summary"]["steps_executed"] == UNIQUE

    table = "".join(f'tls-{name} = "{path}"\n' for name, path in files.items())
    there = f'[run]\nscheduler-file = "{encrypted / "s.json"}"\nstep-timeout = 60\n'
    (folder.path / "dasktune.toml").write_text(there + table)
    done = folder.command(*RUN, "--config", "bad=1")
    assert done.returncode == 1, done.stderr
    assert "ValueError: lr must be >= 0, got -1.0" in done.stdout

    without = folder.command(*RUN, "--scheduler", address)
    assert without.returncode == 2
    assert "must come with --tls-ca, --tls-cert and --tls-key" in without.stderr
    plain = folder.command(*RUN, "--scheduler", address.replace("tls", "tcp"))
    assert plain.returncode == 1
    assert "what answers there speaks TLS" in plain.stderr
    assert "Traceback" not in plain.stderr


def test_workers_of_this_host_have_gpus_of_their_own(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    text = (folder.path / "counting.py").read_text()
    write = 'file.write(self.path + "\\n")'
    assert write in text
    seen = 'file.write(self.device + os.environ["CUDA_VISIBLE_DEVICES"] + "\\n")'
    (folder.path / "counting.py").write_text(text.replace(write, seen))
    folder.hold(at=2)  # or one worker has done all before the other has begun
    process = folder.start(*RUN, "--gpus-per-worker", "1")
    folder.wait_for_steps(2, process)
    folder.go_on(at=2)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    assert set(folder.steps()) == {"cuda0", "cuda1"}

    refused = folder.command(*RUN, "--gpus-per-worker", "1", "--workers", "3", "--config", "bad=1")
    assert refused.returncode == 2
    assert "3 workers with gpus_per_worker=1" in refused.stderr
    assert "there are 2 (0, 1) here" in refused.stderr


def test_stages_that_need_a_gpu_are_refused_where_there_is_none(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    text = (folder.path / "counting.py").read_text()
    needy = text.replace("load_if_exists=True", 'load_if_exists=True, needs={"GPU": 1}')
    (folder.path / "counting.py").write_text(needy)
    done = folder.command(*RUN)
    assert done.returncode == 2
    assert "stages need a GPU (needs: GPU=1), and none is here" in done.stderr
    assert folder.steps() == []


def test_a_timeout_that_is_none_is_refused(folder: Folder) -> None:
    done = folder.command(*RUN, "--step-timeout", "-1", "--silence-timeout", "0")
    assert done.returncode == 2
    assert "step_seconds must be a number of seconds > 0, got -1" in done.stderr
    assert "silence_seconds must be a number of seconds > 0, got 0" in done.stderr
    assert folder.steps() == []
