"""The options of the driver's job and their checks before submission, with fake SLURM commands."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dasktune.cli.commands import app
from dasktune.errors import ClusterError, ConfigurationError
from dasktune.slurm.options import SlurmOptions
from dasktune.slurm.submit import (
    DriverOptions,
    driver_options_for,
    job_script,
    longest_walltime,
    sbatch_options,
)

from .conftest import STUDY_FILE

SINFO = "#!/bin/sh\necho 'short 30:00'\necho 'long* 2-00:00:00'\necho 'free infinite'\n"


@pytest.fixture(autouse=True)
def partitions(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the cluster of these commands three partitions."""
    (commands / "sinfo").write_text(SINFO)
    (commands / "sinfo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("partition", "longest"), [("short", "30:00"), (None, "2-00:00:00"), ("free", "UNLIMITED")]
)
def test_longest_walltime_is_the_limit_of_the_partition(
    partition: str | None, longest: str
) -> None:
    assert longest_walltime(partition) == longest


def test_longest_walltime_unknown_partition_lists_the_known() -> None:
    with pytest.raises(ClusterError, match="unknown partition 'gpu'; known: free, long, short"):
        longest_walltime("gpu")


@pytest.mark.parametrize(
    ("walltime", "margin", "seconds"),
    [("1-0", None, 300), ("8", None, 120), ("8", "1:00", 60), ("UNLIMITED", None, None)],
)
def test_it_begins_to_save_in_time(walltime: str, margin: str | None, seconds: int | None) -> None:
    options = DriverOptions(margin=margin)
    assert options.margin_seconds(walltime) == seconds
    asked = list(sbatch_options(options, SlurmOptions(), walltime, "name"))
    signals = [one for one in asked if one.startswith("--signal")]
    assert signals == ([] if seconds is None else [f"--signal=B:USR1@{seconds}"])


def test_driver_options_leave_missing_commands_to_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigurationError, match=r"^sbatch, squeue, scancel must be in PATH"):
        SlurmOptions()
    assert DriverOptions().cpus == 1


def test_account_and_prologue_default_to_those_of_the_workers() -> None:
    workers = SlurmOptions(account="vision", prologue=("module load cuda",))
    theirs, own = DriverOptions(), DriverOptions(account="ops", prologue=())
    assert "--account=vision" in sbatch_options(theirs, workers, "8", "name")
    assert "--account=ops" in sbatch_options(own, workers, "8", "name")
    assert "module load cuda" in job_script(theirs, workers, "8", ["run"], ["status"])
    assert "module load cuda" not in job_script(own, workers, "8", ["run"], ["status"])


def test_driver_options_report_all_problems_together() -> None:
    with pytest.raises(ConfigurationError) as caught:
        DriverOptions(cpus=0, memory="much", walltime="soon", directives=("nice",))
    assert len(caught.value.problems) == 4
    assert "driver: cpus must be an int >= 1, got 0" in caught.value.problems


def test_flags_come_before_the_table(tmp_path: Path) -> None:
    table = '[slurm]\nworkers = 2\n[slurm.driver]\npartition = "login"\nmemory = "1GB"\n'
    (tmp_path / "dasktune.toml").write_text(table)
    options = driver_options_for(tmp_path, {"partition": "cpu", "qos": None})
    assert (options.partition, options.memory, options.qos) == ("cpu", "1GB", None)


@pytest.mark.parametrize("table", ["[slurm]\ndriver = 3", "[slurm.driver]\nqueue = 'x'"])
def test_a_table_that_cannot_be_is_named(tmp_path: Path, table: str) -> None:
    (tmp_path / "dasktune.toml").write_text(table)
    with pytest.raises(ConfigurationError, match=r"dasktune\.toml: \[slurm\.driver\]"):
        driver_options_for(tmp_path, {})


def test_page_shows_readable_driver_options_and_names_every_key(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "driver-job.md").read_text()
    (shown,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "dasktune.toml").write_text(shown)
    assert driver_options_for(tmp_path, {}).partition == "cpu"
    for one in fields(DriverOptions):
        assert f"`{one.name}`" in page


def test_the_script_can_be_read_by_the_shell() -> None:
    arguments = ["run", "my study's.py", "--config", "name=$HOME; `ls`"]
    script = job_script(DriverOptions(), SlurmOptions(), "8", arguments, ["status"])
    shell = shutil.which("bash") or "bash"
    done = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    said = script.splitlines()
    (line,) = [one for one in said if "study" in one and one.endswith("&")]
    echoed = subprocess.run(
        [shell, "-c", f"printf '%s\\n' {line.removesuffix('&')}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert echoed.stdout.splitlines()[-4:] == arguments


def test_what_run_would_refuse_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("walk.py").write_text(STUDY_FILE)

    def submitted(*flags: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["submit", "walk.py", *flags])
        return done.exit_code, done.output

    for flags, words in (
        (("--no-such",), "No such option"),
        (("--steps", "many"), "--steps"),
        (("--scheduler", "tcp://x:1"), "only one of --scheduler, --slurm"),
        (("--walltime", "soon", "--driver-memory", "much"), "driver: memory must be"),
        (("--walltime", "soon", "--driver-memory", "much"), "walltime must be"),
    ):
        code, output = submitted(*flags)
        assert code == 2, output
        assert words in output
