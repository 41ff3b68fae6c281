import gc
import signal
import threading
import weakref
from contextlib import suppress
from contextvars import ContextVar

import pytest

from dasktune.trainer.turns import Turns


def counting(said, turns_of):
    def body():
        try:
            for number in range(3):
                said.append(number)
                turns_of().pause()
        finally:
            said.append("end")

    return body


def made(said):
    turns = Turns(counting(said, lambda: turns))
    return turns


def test_a_function_runs_only_in_its_turns():
    said = []
    turns = made(said)
    assert said == []
    assert turns.go_on()
    assert said == [0]
    assert turns.go_on()
    assert said == [0, 1]
    assert turns.go_on()
    assert not turns.go_on()
    assert said == [0, 1, 2, "end"]
    assert not turns.go_on()


def test_a_closed_function_ends_where_it_paused():
    said = []
    turns = made(said)
    turns.go_on()
    turns.close()
    assert said == [0, "end"]
    assert not turns.go_on()
    turns.close()


def test_a_function_that_never_began_is_closed():
    said = []
    turns = made(said)
    turns.close()
    assert said == []
    assert not turns.go_on()


def test_an_exception_is_raised_in_the_caller():
    def body():
        raise ZeroDivisionError("here")

    turns = Turns(body)
    with pytest.raises(ZeroDivisionError, match="here"):
        turns.go_on()
    assert not turns.go_on()


def test_pausing_after_the_end_raises_at_once():
    caught = []

    def body():
        try:
            turns.pause()
        finally:
            try:
                turns.pause()
            except BaseException as error:
                caught.append(type(error).__name__)
                raise

    turns = Turns(body)
    turns.go_on()
    turns.close()
    assert caught == ["TurnsEnded"]


def test_no_thread_is_left_once_its_owner_is_gone():
    class Owner:
        pass

    before = {*threading.enumerate()}
    owner, said = Owner(), []
    turns = made(said)
    turns.go_on()
    new = {*threading.enumerate()} - before
    (own,) = (thread for thread in new if thread.name == "dasktune-turns")
    weakref.finalize(owner, turns.close)
    del owner
    gc.collect()
    assert said == [0, "end"]
    assert not own.is_alive()


class Model: ...


@pytest.mark.parametrize("ending", ["closed", "failed", "over"])
def test_nothing_of_an_ended_function_stays_alive(ending):
    held = []

    def use():
        def body():
            model = Model()
            held.append(weakref.ref(model))
            turns.pause()
            if ending == "failed":
                raise ZeroDivisionError

        turns = Turns(body)
        turns.go_on()
        if ending == "closed":
            turns.close()
            return
        with suppress(ZeroDivisionError):
            turns.go_on()

    gc.collect()
    gc.disable()
    try:
        use()
        assert held[0]() is None
    finally:
        gc.enable()


def test_the_function_sees_the_context_of_its_caller():
    variable = ContextVar("variable", default="unset")
    seen = []
    token = variable.set("set")
    try:
        Turns(lambda: seen.append(variable.get())).go_on()
    finally:
        variable.reset(token)
    assert seen == ["set"]


def test_an_interrupted_function_has_ended():
    # dask_jobqueue handles the signal otherwise from its import on.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    begun, said = threading.Event(), []

    def body():
        try:
            begun.set()
            while True:
                pass
        finally:
            said.append("end")

    def interrupt():
        begun.wait()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    turns = Turns(body)
    # A signal is handled in the main thread, which waits in `go_on`.
    sender = threading.Thread(target=interrupt)
    sender.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            turns.go_on()
    finally:
        signal.signal(signal.SIGINT, handler)
    sender.join()
    assert said == ["end"]
    assert not turns.go_on()
