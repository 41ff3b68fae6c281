"""The log of a stage: lines as a terminal shows them, with bounds, each in its thread's log."""

from __future__ import annotations

import gc
import io
import logging
import sys
import threading
from typing import Any

import pytest

from dasktune._worker.printed import MOST_CHARACTERS, PrintedLines, Printer


def text_of(*printed: str) -> str:
    log = PrintedLines()
    for text in printed:
        log.add(text)
    return log.take_news() or ""


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        (("a\n", "b", "c\n"), "a\nbc"),
        (("\r 1%", "\r50%", "\r99%\n", "done"), "99%\ndone"),
        (("50%\r", "51%\r"), "51%"),
        (("a\r\n", "b\r\n"), "a\nb"),
        (("\x1b[31mred\x1b[0m, \x1b[2Kcleared",), "red, cleared"),
        (("no surrogate: \udcff",), "no surrogate: \\udcff"),
        (("no NUL: \0",), "no NUL: \\x00"),
        (("sqlite+psycopg://ann:letmein@db/x",), "sqlite+psycopg://***@db/x"),
        (("\n",), ""),
    ],
)
def test_log_shows_lines_as_a_terminal(printed: tuple[str, ...], shown: str) -> None:
    assert text_of(*printed) == shown


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_log_of_many_lines_keeps_the_last(end: str) -> None:
    lines = [f"line {number}" for number in range(10_000)]
    head, *kept = text_of(*(f"{line}{end}" for line in lines)).splitlines()
    assert kept == lines[-len(kept) :]
    assert head == f"({10_000 - len(kept):,} earlier lines are left out)"
    assert MOST_CHARACTERS - 20 < len("\n".join(kept)) <= MOST_CHARACTERS


def test_log_of_a_long_line_cuts_no_secret() -> None:
    url = "postgresql://ann:letmein@db/x"
    for missing in range(1, len(url)):
        text = f"{'x' * 99} {url} {'y' * (MOST_CHARACTERS - len(url) - 2 + missing)}"
        assert "letmein" not in text_of(*text)
        assert len(text_of(text)) <= MOST_CHARACTERS


def test_log_bears_a_finalizer_that_prints() -> None:
    log = PrintedLines()

    class Noisy:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            log.add("freed\n")

    def train() -> None:
        for allocations in range(2, 40):  # one of them has the collection begin in an addition
            gc.set_threshold(allocations)
            for _ in range(200):
                Noisy()
                log.add("a\nb\n")

    before, training = gc.get_threshold(), threading.Thread(target=train, daemon=True)
    training.start()
    training.join(60)
    gc.set_threshold(*before)
    assert not training.is_alive()


def test_log_is_sent_again_only_if_more_was_printed() -> None:
    log = PrintedLines()
    assert log.take_news() is None
    log.add("a")
    assert log.take_news() == "a"
    assert log.take_news() is None
    log.add("b")
    assert log.take_news() == "ab", "a log replaces the one before"


def test_stream_around_another_prints_to_the_log_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    printer, log = Printer(), PrintedLines()
    with printer.prints_to(log):
        print("before")

    class Around:
        def __init__(self, stream: Any) -> None:
            self.stream = stream

        def write(self, text: str) -> int:
            return int(self.stream.write(text))

    monkeypatch.setattr(sys, "stdout", Around(sys.stdout))
    with printer.prints_to(log):
        print("after")
    assert log.take_news() == "before\nafter"


def test_threads_print_to_logs_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = {"stdout": io.StringIO(), "stderr": io.StringIO()}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    # A handler that was made before a stage begins holds the stream itself.
    logger = logging.getLogger("tests.printed")
    logger.addHandler(logging.StreamHandler(streams["stderr"]))
    logger.propagate = False
    both, logs = threading.Barrier(2), [PrintedLines(), PrintedLines()]

    def train(number: int) -> None:
        with Printer().prints_to(logs[number]):
            both.wait()
            print(f"trial {number}")
            logger.warning("of %d", number)
            both.wait()
        print("between stages")

    threads = [threading.Thread(target=train, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    logger.handlers.clear()
    assert [log.take_news() for log in logs] == ["trial 0\nof 0", "trial 1\nof 1"]
    assert sorted(streams["stdout"].getvalue().splitlines()) == [
        *["between stages"] * 2,
        "trial 0",
        "trial 1",
    ]
    assert sorted(streams["stderr"].getvalue().splitlines()) == ["of 0", "of 1"]


def test_text_between_stages_is_in_no_log() -> None:
    printer, log = Printer(), PrintedLines()
    with printer.prints_to(log):
        printer.add("of the stage")
    printer.add(" and after")  # as a thread of a training function does
    assert log.take_news() == "of the stage"


def test_stream_without_attributes_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bare:
        __slots__ = ()

        def write(self, text: str) -> int:
            return len(text)

        def flush(self) -> None:
            """Do nothing."""

    monkeypatch.setattr(sys, "stdout", Bare())
    monkeypatch.setattr(sys, "stderr", None)
    log = PrintedLines()
    with Printer().prints_to(log):
        print("unseen")
    assert log.take_news() is None
