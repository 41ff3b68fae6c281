"""Processes that are started again."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.processes import End, Kept, Start
from tests.holding import wait_until

pytestmark = pytest.mark.process

PATIENCE = 30.0
PROGRAM = """
import signal, sys
def looking_for_the_end():
    print("ready", flush=True)
    if sys.argv[1] == "stay":
        signal.pause()
looking_for_the_end()
sys.stderr.write("error: gone\\nbye\\n")
raise SystemExit(3)
"""


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[str], Kept]]:
    made: list[Kept] = []

    def start(word: str) -> Callable[[str], Start]:
        command = (sys.executable, "-c", PROGRAM, word)
        return lambda name: Start(command=command, environment={"PYTHONFAULTHANDLER": "1"})

    def one(word: str) -> Kept:
        made.append(Kept("worker-0", start(word), tmp_path))
        made[-1].launch()
        wait(lambda: made[-1].output.read_text() == "ready\n")
        return made[-1]

    yield one
    for kept in made:
        kept.destroy()


def wait(is_so: Callable[[], object]) -> None:
    wait_until(is_so, seconds=PATIENCE)


def ended(kept: Kept) -> End:
    found: list[End] = []

    def look() -> bool:
        found.extend(filter(None, [kept.look()]))
        return bool(found)

    wait(look)
    return found[0]


def test_what_ends_by_itself_is_started_again_under_another_name(
    make: Callable[[str], Kept],
) -> None:
    kept = make("go")
    first = kept.output
    assert ended(kept) == End(name="worker-0.0", code=3, was_ours=False)
    assert kept.pid is None
    assert kept.last_words() == "error: gone"

    def is_back() -> bool:
        kept.launch_again()
        return kept.pid is not None

    wait(is_back)
    assert kept.name == "worker-0.1"
    assert kept.output != first
    assert first.read_text() == "ready\n"


def test_what_was_killed_did_not_end_by_itself(make: Callable[[str], Kept]) -> None:
    kept = make("stay")
    kept.send(signal.SIGSTOP)
    assert kept.paused
    kept.send(signal.SIGCONT)
    assert not kept.paused
    kept.send(signal.SIGKILL)
    assert ended(kept) == End(name="worker-0.0", code=-signal.SIGKILL, was_ours=True)
    kept.send(signal.SIGKILL)  # nobody is there


@pytest.mark.parametrize("paused", [False, True])
def test_what_is_aborted_says_what_it_was_doing(make: Callable[[str], Kept], paused: bool) -> None:
    kept = make("stay")
    if paused:
        kept.send(signal.SIGSTOP)
    assert "looking_for_the_end" in kept.abort()


def test_nothing_is_left_of_what_is_destroyed(make: Callable[[str], Kept]) -> None:
    kept = make("stay")
    kept.send(signal.SIGSTOP)
    kept.destroy()
    assert kept.pid is None
    assert kept.look() is None
