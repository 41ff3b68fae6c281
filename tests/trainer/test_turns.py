import gc
import threading
import weakref

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

    before = threading.active_count()
    owner, said = Owner(), []
    turns = made(said)
    turns.go_on()
    weakref.finalize(owner, turns.close)
    del owner
    gc.collect()
    assert said == [0, "end"]
    assert threading.active_count() == before
