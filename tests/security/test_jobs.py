"""Jobs of SLURM: what stands in their scripts, and whose their temporary files are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dasktune.errors import ConfigurationError
from dasktune.slurm import SlurmOptions
from dasktune.slurm.launch import main, own_folder
from dasktune.slurm.workers import job_options, pool_module


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put stand-ins for the commands of SLURM on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sbatch", "squeue", "scancel", "scontrol"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)


HOSTILE = ("$(touch pwned)", "a;touch pwned", "`touch pwned`", "a b", "a\n#SBATCH -x", "a'\"&|>")


@pytest.mark.parametrize("text", HOSTILE)
def test_what_goes_into_a_script_is_plain(commands: None, text: str) -> None:
    for name in ("partition", "account", "qos", "walltime", "memory", "interface", "margin"):
        with pytest.raises(ConfigurationError, match=f"{name} must be|unknown interface"):
            SlurmOptions(**{name: text})
    for name in ("shared_directory", "local_directory"):
        with pytest.raises(ConfigurationError, match=f"{name} must be a folder"):
            SlurmOptions(**{name: text})
    for directive in (text, f"--comment={text}\n", f"--comment={text}\r#SBATCH -x"):
        with pytest.raises(ConfigurationError, match="directive"):
            SlurmOptions(directives=(directive,))


@pytest.mark.parametrize(
    "inner", ["$(id)", "`id`", "${X:-$(id)}", "${X:=a}", "$[1]", "\\x", "${X}}"]
)
def test_folder_of_nodes_runs_no_command(commands: None, inner: str) -> None:
    with pytest.raises(ConfigurationError, match="local_directory must be a folder"):
        SlurmOptions(local_directory=f"/scratch/{inner}/a")


@pytest.mark.parametrize("folder", ["/scratch", "$TMPDIR", "${SCRATCH}/run-1", "${T:-/tmp/a}/b"])
def test_folder_of_nodes_may_have_variables(commands: None, folder: str, tmp_path: Path) -> None:
    options = job_options(SlurmOptions(local_directory=folder), tmp_path / "slurm")
    assert options["local_directory"] == f'"{folder}"'


def test_job_folder_with_special_characters_is_refused(
    commands: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "$(touch pwned) x"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigurationError, match=r"shared_directory .* got .*touch pwned"):
        SlurmOptions()


def test_the_script_of_a_job_runs_nothing_but_its_workers(
    commands: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/echo")
    options = job_options(SlurmOptions(partition="gpu", qos="a.b-c"), tmp_path / "slurm")
    script = pool_module().WorkerJob("tls://driver:1", name="worker", **options).job_script()
    done = subprocess.run(
        ["bash", "-u"],
        input=script.replace('"${SLURM_CPUS_PER_TASK}"', "1"),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={"PATH": os.environ["PATH"], "TMPDIR": "/tmp/$(touch pwned) x"},
    )
    assert "tls://driver:1" in done.stdout
    assert "--local-directory /tmp/$(touch pwned) x" in done.stdout
    assert not list(tmp_path.rglob("pwned"))


def test_temporary_files_lie_in_a_folder_of_this_user_alone(tmp_path: Path) -> None:
    made = Path(own_folder(str(tmp_path / "new")))
    assert made == tmp_path / "new" / f"dasktune-{os.getuid()}"
    assert made.stat().st_mode & 0o777 == 0o700
    assert own_folder(str(tmp_path / "new")) == str(made), "and another job takes it, too"


@pytest.mark.parametrize("kind", ["writable", "link", "file", "another's"])
def test_a_folder_that_others_may_write_to_is_refused(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = tmp_path / f"dasktune-{os.getuid()}"
    match kind:
        case "link":
            (tmp_path / "theirs").mkdir(mode=0o700)
            planted.symlink_to(tmp_path / "theirs")
        case "file":
            planted.touch()
        case _:
            planted.mkdir()
            planted.chmod(0o777 if kind == "writable" else 0o700)
    if kind == "another's":
        if os.getuid() != 0:
            pytest.skip("needs root, to make a folder another user's")
        os.chown(planted, 65534, 65534)
    with pytest.raises(ConfigurationError, match="must be a folder of this user"):
        own_folder(str(tmp_path))
    assert main(["--name", "worker", "--local-directory", str(tmp_path)]) == 1
    assert "must be a folder of this user" in capsys.readouterr().err
