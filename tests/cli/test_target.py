"""Where a study is run, by flags and by dasktune.toml; flags win."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dasktune._config_file import table_of
from dasktune.cli.target import RunSettings, run_settings
from dasktune.errors import ConfigurationError


def place(folder: Path, toml: str, **flags: Any) -> RunSettings:
    (folder / "dasktune.toml").write_text(toml)
    return run_settings(folder, flags)


def refusal(folder: Path, toml: str, **flags: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        place(folder, toml, **flags).connecting(folder, {})
    return str(caught.value)


def test_place_without_flags_is_a_cluster_of_this_host(tmp_path: Path) -> None:
    found = run_settings(tmp_path, {"workers": None, "slurm": None})
    assert found == RunSettings()
    assert found.is_local
    with found.connecting(tmp_path, {})() as client:
        assert client is None


def test_the_table_has_flags_by_name_and_flags_win(tmp_path: Path) -> None:
    toml = "[run]\nworkers = 3\ngpus-per-worker = 0.5\nstep_timeout = 600\n"
    found = place(tmp_path, toml)
    assert (found.local_workers, found.local_gpus, found.step_timeout) == (3, 0.5, 600)
    found = place(tmp_path, toml, workers="2")
    assert (found.local_workers, found.local_gpus, found.step_timeout) == (2, 0.5, 600)


def test_files_of_the_table_are_beside_it(tmp_path: Path) -> None:
    found = place(tmp_path, '[run]\nscheduler = "tls://h:1"\ntls-ca = "ca.pem"\n')
    assert found.tls_ca == str(tmp_path / "ca.pem")


def test_the_table_may_say_how_a_run_is_logged(tmp_path: Path) -> None:
    toml = '[run]\nlog-file = "run.log"\nlog-format = "json"\n'
    assert place(tmp_path, toml).log == (str(tmp_path / "run.log"), "json", None)
    assert place(tmp_path, toml, log_format="text").log[1] == "text"


def test_cluster_flag_replaces_the_cluster_of_the_table(tmp_path: Path) -> None:
    there = '[run]\nscheduler = "tls://h:1"\ntls_ca = "ca.pem"\nstep-timeout = 9\n'
    found = place(tmp_path, there, workers="2")
    assert found == RunSettings(workers="2", step_timeout=9)
    found = place(tmp_path, there, scheduler_file="s.json")
    assert found == RunSettings(scheduler_file="s.json", step_timeout=9)
    assert place(tmp_path, there, slurm=True) == RunSettings(slurm=True, step_timeout=9)

    jobs = "[run]\nslurm = true\nworkers = 2\n"
    assert place(tmp_path, jobs) == RunSettings(slurm=True)
    assert place(tmp_path, jobs, slurm=False) == RunSettings(workers=2)
    assert place(tmp_path, jobs, workers="2-8") == RunSettings(slurm=True, workers="2-8")
    assert place(tmp_path, jobs, scheduler="tls://h:1") == RunSettings(scheduler="tls://h:1")


def test_range_of_workers_and_their_timeout_reach_the_run(tmp_path: Path) -> None:
    settings = place(tmp_path, '[run]\nworkers = "1-4"\nworkers-timeout = 600\n')
    assert settings.local_workers == "1-4"
    assert settings.timeouts().workers_seconds == 600


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("[run]\nworker = 2", "[run]: unknown option 'worker'; known: audit, gpus_per_worker"),
        ("[runs]\nworkers = 2", "unknown table 'runs'; known: run, slurm"),
        ("run = 3", "run must be a table, got 3"),
        ("[run", "must be a TOML file"),
        ("run = " + "[" * 100_000, "must be a TOML file"),
        ("#" * (2**20 + 1), "must be a TOML file of at most 1,048,576 bytes, got 1,048,577"),
        ("[run]\nworkers = 0", "--workers must be a number >= 1 or a range such as 0-16, got 0"),
        ("[run]\nworkers = true", "or a range such as 0-16, got True"),
        ("[run]\nworkers = 2\nscheduler = 'tls://h:1'", "--workers is for a local cluster"),
        ("[run]\nlog-file = 5", "--log-file must be a text, got 5"),
        ("[run]\nscheduler = 5", "--scheduler must be a text, got 5"),
        ("[run]\nscheduler = 'tcp://192.0.2.1:8786'", "without encryption runs code on it"),
        ("[run]\nslurm = 'yes'", "--slurm must be true or false, got 'yes'"),
        ("[run]\nslurm = true\nscheduler = 'tls://h:1'", "only one of --scheduler, --slurm"),
        ("[run]\ntls-ca = 'x'", "--tls-ca is for a cluster of --scheduler"),
        ("[run]\nscheduler_file = 'none.json'", "none.json': [Errno 2]"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, toml: str, message: str) -> None:
    assert message in refusal(tmp_path, toml)


@pytest.mark.parametrize("kind", ["pipe", "endless", "folder"])
def test_a_table_that_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "dasktune.toml"
    if kind == "endless":
        file.symlink_to("/dev/zero")
    else:
        (os.mkfifo if kind == "pipe" else os.mkdir)(file)
    with pytest.raises(ConfigurationError, match="must be a TOML file, got no regular file"):
        table_of(tmp_path, "run")


def test_place_reports_all_contradictions_together(tmp_path: Path) -> None:
    said = refusal(tmp_path, "", scheduler="tls://h:1", workers="2", gpus_per_worker=1.0)
    assert "--workers is for a local cluster, not for one of --scheduler" in said
    assert "--gpus-per-worker is for a local cluster" in said


def test_options_of_jobs_need_slurm(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--partition, --qos must come with --slurm"):
        RunSettings().connecting(tmp_path, {"partition": "gpu", "qos": "low", "account": None})
