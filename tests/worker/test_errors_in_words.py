"""Failures in words: also errors whose text, representation or cause is broken."""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

import pytest
from torch.utils.data import DataLoader

from dasktune._worker.errors_in_words import (
    LONGEST_MESSAGE,
    in_words,
    is_out_of_memory,
    spoils_process,
)
from dasktune.errors import text_of


def starts_pool() -> None:
    multiprocessing.Pool(1)


def loads_in_processes() -> None:
    next(iter(DataLoader([1, 2], num_workers=1)))  # type: ignore[arg-type]


def hides_the_cause() -> None:
    try:
        multiprocessing.Process(target=time.time).start()
    except AssertionError as error:
        raise RuntimeError("no data" * 200) from error


@pytest.mark.process
@pytest.mark.parametrize("starts", [starts_pool, loads_in_processes, hides_the_cause])
def test_error_of_a_daemon_names_the_setting(starts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing.current_process(), "daemon", True)  # as with a nanny
    with pytest.raises((AssertionError, RuntimeError)) as error:
        starts()
    message = in_words(error.value)["message"]
    assert message.endswith(
        "; the workers of this cluster are daemons: set distributed.worker.daemon: false for "
        "them, or start them with --no-nanny"
    )
    assert len(message) <= LONGEST_MESSAGE


def test_error_of_another_kind_has_no_remedy() -> None:
    assert in_words(AssertionError("daemonic"))["message"] == "AssertionError: daemonic"


class UnreadableTextError(Exception):
    def __str__(self) -> str:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    def __repr__(self) -> str:
        raise RuntimeError("no representation")


class WithoutTextError(Exception):
    def __str__(self) -> str:
        return None  # type: ignore[return-value]


class WithoutLengthError(Exception):
    def __len__(self) -> int:
        raise RuntimeError("no length")


def in_a_cycle() -> Exception:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def after(cause: Exception) -> Exception:
    error = RuntimeError("above")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        UnreadableTextError(b"\xff"),
        WithoutTextError(),
        WithoutLengthError(),
        in_a_cycle(),
        after(UnreadableTextError()),
        after(WithoutLengthError()),
        ValueError(UnreadableTextError()),
        ExceptionGroup("several", [UnreadableTextError()]),
        ValueError(b"caf\xe9".decode("utf-8", "surrogateescape")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_in_words_returns_a_text_of_any_error(error: Exception) -> None:
    words = in_words(error)
    assert type(error).__name__ in words["message"]
    assert type(error).__name__ in words["traceback"]
    "".join(words.values()).encode()
    assert not spoils_process(error)
    assert not is_out_of_memory(error)
    assert isinstance(text_of(error), str)


def test_spoils_process_sees_a_cause_below_an_unreadable_error() -> None:
    error = UnreadableTextError()
    error.__cause__ = RuntimeError("CUDA error: an illegal memory access was encountered")
    assert spoils_process(error)
    error.__cause__ = MemoryError()
    assert is_out_of_memory(error)
