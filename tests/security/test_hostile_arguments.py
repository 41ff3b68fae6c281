"""Tests that commands answer hostile or careless arguments in words, and never by a traceback."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dasktune as dt
from dasktune.cli.commands import app

STUDY = """
import dasktune as dt

def study():
    return dt.create_study(None, name="own", storage="store", metric="loss", load_if_exists=True)

def tuner():
    return dt.algos.Random(dt.Space(x=dt.Float(-1, 1)), trials=3, max_steps=1)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder: a store, its study file, and odd files."""
    monkeypatch.chdir(tmp_path)
    study = dt.create_study(None, name="own", storage="store", metric="loss")
    tuner = dt.algos.Random(dt.Space(x=dt.Float(-1, 1)), trials=3, max_steps=1)
    while asked := study.ask(tuner):
        study.tell(asked, 1.0)
    study.close()
    Path("tune.py").write_text(STUDY)
    Path("text.db").write_text("this is no database\n" * 100)
    Path("latin.py").write_bytes(b"x = '\xe9'\n")
    Path("null.py").write_bytes(b"x = 1\0\n")
    Path("deep.py").write_text("x = " + "(" * 5_000 + ")" * 5_000)
    Path("folder.py").mkdir()
    Path("empty").mkdir()
    Path("loop").symlink_to("loop")
    Path("dangling.db").symlink_to("none")
    os.mkfifo("pipe")
    with Path("sparse.db").open("wb") as file:
        file.truncate(20 * 2**30)
    odd: dict[str, Callable[[Path], object]] = {
        "marker-loop": lambda path: path.symlink_to(path.name),
        "marker-folder": Path.mkdir,
        "marker-pipe": os.mkfifo,
    }
    for name, plant in odd.items():
        Path(name).mkdir()
        plant(Path(name, "dasktune.json"))
    Path("database-folder", "dasktune.db").mkdir(parents=True)
    return tmp_path


TARGETS = [
    *("", ".", "/dev/null", "pipe", "loop", "dangling.db", "text.db", "sparse.db"),
    *("empty", "folder.py", "latin.py", "null.py", "deep.py", "none.py", "none", "\udcff"),
    *("x" * 300, "/".join(["x" * 200] * 30), "-", "~nobody/x", "$HOME/x", "store/dasktune.db/x"),
    *("store/checkpoints", "marker-loop", "marker-folder", "marker-pipe", "database-folder"),
    *("sqlite://", "sqlite:///", "sqlite:////none/x.db", "sqlite:///pipe", "sqlite:///loop"),
    *("postgresql://[::1", "postgresql://127.0.0.1:99999999/x", "postgresql:x", "mysql://a/b"),
    *("s3://", "s3:///x", "s3:/x", "file://", "file:///", "memory://x", "nosuch://x", "::", "://"),
    *("simplecache::file://x", "zip://x", "data:text/plain,x", "\x1b[31m"),
]
COMMANDS = {
    "status": ["status"],
    "ls": ["ls"],
    "gc": ["gc", "--dry-run"],
    "report": ["report", "--output", "report.html"],
    "logs": ["logs", "--trial", "0"],
    "export": ["export", "--optuna", "sqlite://"],
    "migrate": ["migrate"],
    "rm": ["rm", "--yes"],
    "stop": ["stop"],
    "dashboard": ["dashboard", "--study", "none"],
    "preview": ["preview"],
    "replay": ["replay"],
}


def problem_of(arguments: list[str]) -> str:
    """Return the problem of how a command ends; empty if it ends well, or says why not."""
    done = CliRunner().invoke(app, arguments)
    where = f"{arguments!r:.200}: {done.exit_code} {done.exception!r:.300}"
    in_words = done.exception is None or isinstance(done.exception, SystemExit)
    is_silent = done.exit_code == 2 and not done.stderr.strip()
    is_known = done.exit_code in (0, 1, 2) and "Traceback" not in done.output
    return "" if in_words and is_known and not is_silent else where


@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("ignore")  # of the odd study files themselves
@pytest.mark.parametrize("command", COMMANDS)
def test_odd_target_is_refused_in_words(folder: Path, command: str) -> None:
    wrong = [
        problem for target in TARGETS if (problem := problem_of([*COMMANDS[command], "--", target]))
    ]
    assert wrong == []


OPTIONS = [
    *(["status", "store", "--study", name] for name in ("", "\n", "../x", "x" * 5000, "\udcff")),
    *(["status", "store", "--trial", number] for number in ("-1", "99", "9" * 30, "1e3", "")),
    *(["status", "store", "--watch", time] for time in ("0", "-1", "nan", "inf", "1e9", "x")),
    *(["ls", "store", "--sort", word] for word in ("", "x", "size,age", "\x1b[31m")),
    *(["ls", "store", "--limit", number] for number in ("-1", "x", "9" * 30)),
    *(["ls", "store", "--database", place] for place in ("pipe", "loop", "text.db", "none.db")),
    *(["ls", "store/dasktune.db", "--storage", place] for place in ("pipe", "loop", "none", "")),
    *(["gc", "store", "--grace", time] for time in ("-1s", "1e999d", "x", "", "9" * 400 + "d")),
    *(["gc", "store", "--budget", size] for size in ("0", "-1", "nan", "1e999GB", "inf", "")),
    *(["gc", "store", "--keep", text] for text in ("x", "", "best:-1", "best:" + "9" * 30)),
    *(["report", "store", "--output", path] for path in (".", "/dev/full", "loop", "")),
    *(["report", "store", "--output", path] for path in ("tune.py/x.html", "x" * 300)),
    *(["export", "store", "--optuna", url] for url in ("x", "", "sqlite:////none/x", "mysql://a")),
    *(["export", "store", "--optuna", "sqlite://", "--study", name] for name in ("", "none")),
    *(["logs", "store", "--trial", number] for number in ("-1", "99", "9" * 30, "x")),
    *(["preview", "tune.py", "--config", text] for text in ("a", "=", "a=b=c", "\0=1", "a=" * 99)),
    *(["dashboard", "store", "--port", port] for port in ("-1", "65536", "x", "9" * 30)),
    *(["rename", "store", name] for name in ("", "\n", "\udcff", "own")),
    ["dashboard", "store", "none"],
    ["dashboard"],
    ["status", "store", "--trial", "0", "--json"],
    ["status", "store", "extra"],
    ["status", "--nonsense", "store"],
    ["nonsense"],
    ["ls", "store", "--trials", "1"],
]


@pytest.mark.timeout(120)
def test_odd_options_are_refused_in_words(folder: Path) -> None:
    assert [problem for arguments in OPTIONS if (problem := problem_of(arguments))] == []
