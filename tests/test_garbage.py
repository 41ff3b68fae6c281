"""The garbage collector, off in blocks."""

from __future__ import annotations

import gc
from contextlib import ExitStack

from dasktune._garbage import without_collections


def test_collections_are_off_until_the_last_block_ends() -> None:
    first, second = ExitStack(), ExitStack()
    first.enter_context(without_collections())
    second.enter_context(without_collections())
    first.close()
    is_on_between = gc.isenabled()
    second.close()
    assert not is_on_between
    assert gc.isenabled()
