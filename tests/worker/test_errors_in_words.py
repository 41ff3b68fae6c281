"""Words for failures of user code."""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

import pytest
from torch.utils.data import DataLoader

from dasktune._worker.errors_in_words import LONGEST_MESSAGE, in_words


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
    config = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]
    monkeypatch.setitem(config, "daemon", True)  # as in a worker with a nanny
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
