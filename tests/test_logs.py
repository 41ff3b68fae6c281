"""Logs say what they are about, in text and in JSON, and never a secret."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from dasktune.errors import ConfigurationError
from dasktune.logs import FIELDS, Redacting, about, configure, within
from tests.pages import python_blocks

logger = logging.getLogger("dasktune.somewhere")

SECRET = "hunter2-hunter2"
URL = f"postgresql://ann:{SECRET}@db/tuning"


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_json_lines_have_time_level_logger_and_fields(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with configure(log, "json"), within("digits"):
        fields = about(trials=[3, 4], stage="a1f0", start=2, stop=9, worker="tcp://w:1")
        logger.info("stage of %s ended", "x\ny", extra=fields)
    (line,) = lines(log)
    assert datetime.fromisoformat(str(line.pop("time"))).utcoffset() == timedelta(0)
    assert line == {
        "level": "INFO",
        "logger": "dasktune.somewhere",
        "message": "stage of x\ny ended",
        "study": "digits",
        "trials": [3, 4],
        "stage": "a1f0",
        "start": 2,
        "stop": 9,
        "worker": "tcp://w:1",
    }


def test_text_lines_end_with_fields_on_one_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with configure(log, "text"):
        logger.warning("it\nfailed", extra=about(study='a "b"', trials=[3, 4], worker="w"))
    (line,) = log.read_text().splitlines()
    assert line.endswith(
        'WARNING dasktune.somewhere: it failed [study="a \\"b\\"" trials=3,4 worker=w]'
    )


@pytest.mark.parametrize(("level", "found"), [("INFO", 2), ("warning", 1), ("ERROR", 0)])
def test_level_is_the_lowest_written(tmp_path: Path, level: str, found: int) -> None:
    log = tmp_path / "log"
    with configure(log, "json", level):
        logger.info("one")
        logger.warning("two")
    assert len(lines(log)) == found


def test_configure_restores_the_logger(tmp_path: Path) -> None:
    top = logging.getLogger("dasktune")
    before = (top.level, list(top.handlers))
    with configure(tmp_path / "log"):
        assert (top.level, list(top.handlers)) != before
    assert (top.level, list(top.handlers)) == before


def test_terminal_shows_bare_messages_by_default(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with configure():
        logger.info("one")
        logger.warning("two at %s", URL, extra=about(worker="w"))
    with configure(format="text"):
        logger.warning("three", extra=about(worker="w"))
    two, three = capsys.readouterr().err.splitlines()
    assert two == "two at postgresql://***@db/tuning"
    assert three.endswith("WARNING dasktune.somewhere: three [worker=w]")


def test_wrong_options_are_refused_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"log format .*xml(.|\n)*log level .*LOUD"):
        configure(tmp_path / "log", "xml", "loud").__enter__()
    with pytest.raises(ConfigurationError, match="log file must be writable"):
        configure(tmp_path / "none" / "log").__enter__()


def in_message() -> None:
    logger.warning(f"cannot reach {URL}")


def in_arguments() -> None:
    logger.warning("cannot reach %s of %r", URL, {"url": URL})


def in_exception() -> None:
    try:
        raise ValueError(f"no answer from {URL}")
    except ValueError:
        logger.exception("it failed")


def in_fields() -> None:
    found = about(worker=URL, trials=[URL], stage={"url": (URL,)}, attempt=URL, step=7)
    logger.warning("it failed", extra=found)


def in_foreign_fields() -> None:
    logger.warning("it failed", extra={"whatever": ValueError(URL)})


def in_environment() -> None:
    logger.warning("signed with %s", "abcdef-of-the-environment")


CASES = [
    *(in_message, in_arguments, in_exception, in_fields, in_foreign_fields, in_environment),
]


@pytest.mark.parametrize("format", ["text", "json"])
@pytest.mark.parametrize("case", CASES)
def test_secrets_are_not_written(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    case: Callable[[], None],
    format: str,
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "abcdef-of-the-environment")
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])  # as in a program of its own
    with configure(tmp_path / "log", format):
        case()
    for text in ((tmp_path / "log").read_text(), capsys.readouterr().err):
        assert "***" in text or case in (in_fields, in_foreign_fields)
        assert SECRET not in text
        assert "abcdef" not in text
    assert "***" in (tmp_path / "log").read_text()


def test_the_traceback_is_in_the_file_without_its_secret(tmp_path: Path) -> None:
    with configure(tmp_path / "log", "json"):
        in_exception()
    (line,) = lines(tmp_path / "log")
    assert "ValueError: no answer from postgresql://***@db/tuning" in str(line["traceback"])


def test_redacting_filter_works_on_other_handlers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.handler.addFilter(redacting := Redacting())
    try:
        in_arguments()
        in_exception()
    finally:
        caplog.handler.removeFilter(redacting)
    assert SECRET not in caplog.text
    assert "no answer from" in caplog.text


def test_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[1] / "docs" / "observability.md").read_text()
    monkeypatch.chdir(tmp_path)
    top, names = logging.getLogger("dasktune"), {}
    before = list(top.handlers)
    try:
        for block in python_blocks("observability.md"):
            exec(compile(block, "observability.md", "exec"), names)
        assert (tmp_path / "run.log").exists()
        (added,) = set(top.handlers) - set(before)
        assert added is names["handler"]
    finally:
        top.handlers = before
    for name in FIELDS:
        assert f"`{name}`" in page
