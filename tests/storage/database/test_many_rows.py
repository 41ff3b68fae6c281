"""Garbage collections while many rows are read."""

from __future__ import annotations

import gc
from contextlib import ExitStack

from dasktune.storage.database.many_rows import many_rows


def test_collections_are_off_until_the_last_reader_ends() -> None:
    first, second = ExitStack(), ExitStack()
    first.enter_context(many_rows())
    second.enter_context(many_rows())
    first.close()
    is_on_between = gc.isenabled()
    second.close()
    assert not is_on_between
    assert gc.isenabled()
