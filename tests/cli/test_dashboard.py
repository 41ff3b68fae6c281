"""The commands that serve the page: `dasktune dashboard`, and `dasktune run --dashboard`."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dasktune._dashboard.access import HEADER
from dasktune._dashboard.process import served
from dasktune.cli import app
from dasktune.cli.status import read
from tests.dashboard.made_study import Made, made_database

from .conftest import Folder

pytestmark = pytest.mark.process

ADDRESS = re.compile(r"^page: (http://127\.0\.0\.1:(\d+)/)#(?:/(\d+)/overview&)?token=([\w-]+)$")


def asked(line: str, path: str) -> object:
    """Return the answer of the server at a printed address."""
    match = ADDRESS.match(line.strip())
    assert match is not None, line
    request = urllib.request.Request(f"{match[1]}api/{path}", headers={HEADER: match[4]})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def posted(line: str, path: str) -> str:
    """Return the words of the server at a printed address about a change."""
    match = ADDRESS.match(line.strip())
    assert match is not None, line
    headers = {HEADER: match[4], "Origin": match[1].rstrip("/")}
    request = urllib.request.Request(f"{match[1]}api/change/{path}", b"{}", headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(json.loads(answer.read())["said"])


def ended(process: subprocess.Popen[str]) -> int:
    """End a command as ctrl-C does; return its exit code."""
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    return process.returncode


def test_dashboard_serves_a_store_until_ctrl_c(folder: Folder) -> None:
    store = folder.path / "runs"
    store.mkdir()
    made_database(store, first=Made(trials=3), second=Made(trials=5))
    process = folder.start("dashboard", "runs")
    assert process.stdout is not None
    listed = asked(process.stdout.readline(), "studies")
    assert {each["study"] for each in listed["studies"]} == {"first", "second"}  # type: ignore[index]
    assert ended(process) == 0


def test_dashboard_serves_several_stores(tmp_path: Path) -> None:
    for name in ("digits", "letters"):
        (tmp_path / name).mkdir()
        made_database(tmp_path / name, **{name: Made(trials=3)})
    command = [sys.executable, "-m", "dasktune", "dashboard", "digits", "letters"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        listed = asked(process.stdout.readline(), "studies")
        assert [each["study"] for each in listed["studies"]] == ["digits", "letters"]  # type: ignore[index]
        assert ended(process) == 0


def test_run_serves_its_study_while_it_runs(folder: Folder) -> None:
    (folder.path / "steps.log.hold-2").touch()
    process = folder.start("run", "counting.py", "--workers", "1", "--no-report", "--dashboard")
    assert process.stderr is not None
    lines = [process.stderr.readline(), process.stderr.readline()]
    assert re.match(r"Dask: http://127\.0\.0\.1:\d+/status", lines[1])
    folder.wait_for_steps(1, process)
    overview = asked(lines[0], "overview/1")
    assert overview["study"] == "counting"  # type: ignore[index]
    assert overview["is_alive"] is True  # type: ignore[index]
    match = ADDRESS.match(lines[0].strip())
    assert match is not None
    (folder.path / "steps.log.hold-2").unlink()
    process.communicate(timeout=120)
    assert process.returncode == 0
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(match[2]))) != 0


def test_dashboard_refuses_what_it_cannot_show(tmp_path: Path) -> None:
    made_database(tmp_path, only=Made(trials=2))
    runner = CliRunner()
    answer = runner.invoke(app, ["dashboard", str(tmp_path), "--study", "onyl"])
    assert answer.exit_code == 2
    answer = runner.invoke(app, ["dashboard", str(tmp_path / "nothing")])
    assert answer.exit_code == 2
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        answer = runner.invoke(app, ["dashboard", str(tmp_path), "--port", port])
    assert answer.exit_code == 2
    assert f"--port {port} cannot be used" in answer.output


def test_the_page_stops_a_run_and_has_trials_retried(folder: Folder) -> None:
    folder.hold(at=12)
    bad = ("--workers", "1", "--no-report", "--config", "bad=true")
    process = folder.start("run", "counting.py", *bad, "--dashboard", "--allow-changes")
    assert process.stderr is not None
    page = process.stderr.readline()
    folder.wait_for_steps(11, process)
    assert f"Process {process.pid} on " in posted(page, "stop/1")
    while "asked to stop by the live page, " not in process.stderr.readline():
        assert process.poll() is None
    folder.go_on(at=12)
    process.communicate(timeout=120)
    assert process.returncode == 0

    assert folder.command("run", "counting.py", *bad).returncode == 1
    store = str(folder.path / "runs" / "counting")
    (before,) = read(store)
    with served(store + "/dasktune.db", allows_changes=True) as address:
        assert "The next run trains 1 failed trial again." in posted(f"page: {address}", "retry/1")
    assert folder.command("run", "counting.py", *bad).returncode == 1
    (after,) = read(store)
    assert after.stages["failed"] > before.stages["failed"]
    assert folder.command("run", "counting.py", *bad).returncode == 1
    assert read(store)[0].stages == after.stages, "a request is taken once"


def test_a_missing_extra_is_named_before_the_file_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bokeh", None)
    study_file = tmp_path / "slow.py"
    study_file.write_text("raise SystemExit('it was loaded')")
    done = CliRunner().invoke(app, ["dashboard", str(study_file)])
    assert done.exit_code == 2
    assert "the live page needs Bokeh: pip install 'dasktune[dashboard]'" in done.stderr
