"""Signals while a study runs: the first is gentle, the second is not, others' are left alone."""

from __future__ import annotations

import gc
import os
import pty
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dasktune._driver.interrupt import SAVING, interruptible
from tests.holding import Gate, wait_until

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE = 120.0


class Running:
    """Counts how often it was asked to stop."""

    def __init__(self, is_running: bool = True) -> None:
        self.asked = 0
        self.is_running = is_running

    def stop(self) -> bool:
        self.asked += 1
        return self.is_running


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Give every test Python's own handlers, and see that they are there at the end."""
    before = [signal.getsignal(number) for number in SIGNALS]
    defaults = [signal.default_int_handler, signal.SIG_DFL, signal.SIG_DFL]
    for number, handler in zip(SIGNALS, defaults, strict=True):
        signal.signal(number, handler)
    yield
    left = [signal.getsignal(number) for number in SIGNALS]
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)
    assert left == defaults


def signalled(stop: Callable[[], bool], *numbers: signal.Signals) -> list[signal.Signals]:
    """Return after which signals the program went on; it must be interrupted in the end."""
    survived = []

    def work() -> None:
        with interruptible(stop):
            for number in numbers:
                signal.raise_signal(number)
                survived.append(number)

    with pytest.raises(KeyboardInterrupt):
        work()
    return survived


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_only_asks(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    study = Running()
    assert signalled(study.stop, number) == [number]
    assert study.asked == 1
    assert capfd.readouterr().err == SAVING.decode()


def test_interrupt_in_a_garbage_collection_is_not_lost() -> None:
    first = iter([signal.SIGINT])

    def interrupt(phase: str, info: dict[str, int]) -> None:
        for number in first:
            signal.raise_signal(number)

    def work() -> None:
        with interruptible(Running(is_running=False).stop):
            gc.collect()
            threading.Event().wait(PATIENCE)

    # The collection must be over when the interrupt comes again, or Dask's function drops it, too.
    gc.collect()
    gc.freeze()
    gc.callbacks.append(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
    finally:
        gc.callbacks.remove(interrupt)
    assert next(first, None) is None


def test_the_last_line_comes_before_the_interrupt(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        with interruptible(Running().stop, lambda: "saved"):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert capsys.readouterr().err == "saved\n"


@pytest.mark.parametrize("number", SIGNALS)
def test_the_second_signal_ends_it_at_once(number: signal.Signals) -> None:
    study = Running()
    is_hang_up = number is signal.SIGHUP  # the kernel and the shell may both send it
    survived = [signal.SIGINT, number] if is_hang_up else [signal.SIGINT]
    assert signalled(study.stop, signal.SIGINT, number) == survived
    assert study.asked == 1


def test_where_nothing_runs_the_first_signal_ends_it() -> None:
    assert signalled(Running(is_running=False).stop, signal.SIGTERM) == []


def test_without_a_signal_nothing_is_raised() -> None:
    study = Running()
    with interruptible(study.stop):
        pass
    assert study.asked == 0


def test_an_inner_one_leaves_signals_to_the_outer_one() -> None:
    outer, inner = Running(), Running()
    ended = []

    def work() -> None:
        with interruptible(outer.stop):
            ended.append(signalled_inside(inner.stop))

    with pytest.raises(KeyboardInterrupt):
        work()
    assert ended == [True]
    assert (outer.asked, inner.asked) == (1, 0)


def signalled_inside(stop: Callable[[], bool]) -> bool:
    with interruptible(stop):
        signal.raise_signal(signal.SIGINT)
    return True


def test_handlers_of_the_program_stay() -> None:
    heard: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    study = Running()
    with interruptible(study.stop):
        for one in SIGNALS:
            signal.raise_signal(one)
    assert heard == [signal.SIGINT]
    assert study.asked == 0
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in SIGNALS[1:]:
        signal.signal(number, signal.SIG_DFL)


def test_other_threads_hear_of_no_signals() -> None:
    inside: list[object] = []

    def run() -> None:
        with interruptible(Running().stop):
            inside.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert inside == [signal.default_int_handler]


ROOT = Path(__file__).parents[2]
STEPS = 60
HELD = 5
"""The step at which a trial stays until it is told to end, if there is the file ``stays``."""

SCRIPT = f"""
import os
from distributed import get_worker
import dasktune as dt
from tests.holding import pass_gate, stop_order, wait_until

if __name__ != "__main__":  # each worker reads it when it starts
    open("starting", "w").close()
    pass_gate("hold")

class Slow(dt.Trainer):
    ignored_config = ("log",)
    def build(self, hp):
        self.done = 0
    def setup(self, hp):
        pass
    def train(self):
        if self.done == {HELD} and os.path.exists("stays"):
            wait_until(stop_order([get_worker()]))
        self.done += 1
        with open("steps.log", "a") as file:
            file.write(str(self.done) + "\\n")
    def evaluate(self):
        return dict(loss=1.0 / self.done)
    def state_dict(self):
        return dict(done=self.done)
    def load_state_dict(self, state):
        self.done = state["done"]

if __name__ == "__main__":
    study = dt.create_study(Slow, name="slow", metric="loss", load_if_exists=True)
    tuner = dt.algos.Grid(dt.Space(lr=[0.1]), max_steps={STEPS})
    try:
        study.optimize(tuner, workers=1, progress=False)
    except KeyboardInterrupt:
        print("interrupted", study.summary()["steps_executed"])
    else:
        print("done", study.summary()["steps_executed"])
"""


@pytest.mark.process
@pytest.mark.cluster
@pytest.mark.parametrize("number", SIGNALS)
def test_a_script_saves_what_runs_and_goes_on_with_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "stays").touch()
    log = tmp_path / "steps.log"
    process = start(tmp_path)
    wait_for(process, lambda: log.exists() and len(log.read_text().splitlines()) >= HELD)
    if number is not signal.SIGTERM:
        os.killpg(process.pid, number)  # as a terminal does: to the workers, too
    else:
        process.send_signal(number)
    out, errors = process.communicate(timeout=PATIENCE)
    assert "Traceback" not in errors
    assert errors.endswith("slow: interrupted; what ran is saved; the same command goes on\n")
    trained = len(log.read_text().splitlines())
    assert out == f"interrupted {trained}\n", errors
    assert HELD <= trained < STEPS
    (tmp_path / "stays").unlink()
    out, errors = start(tmp_path).communicate(timeout=PATIENCE)
    assert out == f"done {STEPS}\n", errors
    assert len(log.read_text().splitlines()) == STEPS, "nothing is trained again"


@pytest.mark.process
@pytest.mark.cluster
def test_a_script_whose_terminal_is_closed_saves_what_runs(tmp_path: Path) -> None:
    (tmp_path / "stays").touch()
    log = tmp_path / "steps.log"
    (tmp_path / "script.py").write_text(
        SCRIPT.replace(", progress=False", "").replace(
            'print("interrupted", study.summary()["steps_executed"])', 'open("ended", "w").close()'
        )
    )
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(tmp_path)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        os.execve(sys.executable, [sys.executable, "script.py"], environment)
    reader = threading.Thread(target=read_all, args=(terminal, closing := threading.Event()))
    reader.start()
    try:
        wait_until(
            lambda: log.exists() and len(log.read_text().splitlines()) >= HELD, seconds=PATIENCE
        )
    finally:
        closing.set()
        reader.join()
        os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (tmp_path / "ended").exists(), "it was interrupted, and everything else was done"
    trained = len(log.read_text().splitlines())
    (tmp_path / "stays").unlink()
    out, errors = start(tmp_path).communicate(timeout=PATIENCE)
    assert out == f"done {STEPS}\n", errors
    assert HELD <= trained < STEPS == len(log.read_text().splitlines())


def read_all(terminal: int, closing: threading.Event) -> None:
    """Read what a program writes to its terminal until that is closed, or it would wait."""
    while not closing.is_set():
        if select.select([terminal], [], [], 0.1)[0]:
            os.read(terminal, 1 << 16)


@pytest.mark.process
@pytest.mark.cluster
def test_a_script_is_interrupted_while_its_cluster_starts(tmp_path: Path) -> None:
    with Gate(tmp_path / "hold"):
        process = start(tmp_path)
        wait_for(process, (tmp_path / "starting").exists)
        os.killpg(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=PATIENCE)
    assert out == "interrupted 0\n", errors
    assert "Traceback" not in errors
    assert errors.endswith("slow: interrupted; no step was trained; the same command goes on\n")


def start(folder: Path) -> subprocess.Popen[str]:
    (folder / "script.py").write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(process: subprocess.Popen[str], is_there: Callable[[], bool]) -> None:
    wait_until(is_there, process, seconds=PATIENCE)
