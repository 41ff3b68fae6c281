"""The codec of options and state: JSON by the types of fields, read again as it was."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.algos import ASHA, PBT, SHA, Hyperband, MedianStopping, Tuner
from dasktune.algos.sampled import SampledTuner
from dasktune.algos.state import from_json, set_state, state_to_json, to_json
from dasktune.errors import ConfigurationError
from dasktune.space import Float, Space
from tests.call_counter import python_calls

SPACE = Space(lr=Float(0.1, 0.2))


class Mood(Enum):
    GOOD = "good"


@dataclass(slots=True, kw_only=True)
class Part:
    trial: int
    mood: Mood = Mood.GOOD
    ends: tuple[float, float] | None = None
    derived: float = field(default=0.0, init=False)


PART = {"trial": 1, "mood": "good", "ends": None}


@pytest.mark.parametrize(
    ("kind", "value", "document"),
    [
        (float, math.inf, None),
        (float | None, None, None),
        (set[int], {3, 1}, [1, 3]),
        (tuple[int, ...], (2, 1), [2, 1]),
        (dict[str, tuple[float, float]], {"a": (0.5, math.inf)}, {"a": [0.5, None]}),
        (dict[int, float], {}, []),
        (dict[int, float], {2: math.inf, 1: 0.5}, [[2, None], [1, 0.5]]),
        (dict[int, tuple[int, float]], {2: (1, 0.5)}, [[2, 1, 0.5]]),
        (dict[int, list[float]], {2: [0.5, 0.25]}, [[2, [0.5, 0.25]]]),
        (
            dict[tuple[int, int], list[tuple[float, int]]],
            {(0, 3): [(0.5, 1), (math.inf, 2)]},
            [[0, 3, [[0.5, 1], [None, 2]]]],
        ),
        (Part, Part(trial=1), PART),
        (tuple[tuple[int, float], ...], ((1, math.inf), (2, 0.5)), [[1, None], [2, 0.5]]),
        (tuple[int, tuple[float, str]], (1, (math.inf, "a")), [1, [None, "a"]]),
        (dict[tuple[str, int], tuple[float, int]], {("a", 1): (0.5, 2)}, [["a", 1, 0.5, 2]]),
        (dict[str, list[int]], {"a": [2, 1]}, {"a": [2, 1]}),
        (frozenset[str] | None, frozenset(("b", "a")), ["a", "b"]),
        (list[Part | None], [None, Part(trial=1)], [None, PART]),
        (list[Mood], [Mood.GOOD], ["good"]),
        (
            dict[int, Part],
            {4: Part(trial=4, ends=(0.0, 1.0))},
            [{"trial": 4, "mood": "good", "ends": [0.0, 1.0]}],
        ),
    ],
)
def test_values_are_read_as_they_were_written(kind: Any, value: object, document: object) -> None:
    written = json.loads(json.dumps(to_json(kind, value), allow_nan=False))
    assert written == document
    assert from_json(kind, written, {}) == value


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        (dict[int, float], [[1, 0.5, 0.25]]),
        (dict[int, float], [[1]]),
        (dict[int, str], ["1a"]),
        (list[tuple[int, float]], [[1, 0.5], [2]]),
        (list[tuple[int, float]], {"1": 0.5}),
        (tuple[str, str], "ab"),
        (list[int], [1, "2"]),
        (list[int], "12"),
        (dict[str, int], [["a", 1]]),
        (Part, {"trial": 1}),
        (Part, [1, "good", None]),
        (Mood, "bad"),
        (int | None, "1"),
    ],
)
def test_documents_of_another_type_are_refused(kind: Any, document: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        from_json(kind, document, {})


@pytest.mark.parametrize(
    ("kind", "of"),
    [
        (dict[int, float], lambda n: (n, n / 2)),
        (dict[int, tuple[int, float]], lambda n: (n, (n, n / 2))),
        (dict[tuple[int, int], float], lambda n: ((n, n), n / 2)),
    ],
)
def test_more_entries_take_no_more_pythonpython_calls(kind: Any, of: Callable[[int], Any]) -> None:
    few, many = dict(map(of, range(2))), dict(map(of, range(200)))
    documents = [to_json(kind, value) for value in (few, many)]
    from_json(kind, documents[0], {})  # compiles the reader
    assert python_calls(lambda: to_json(kind, many)) == python_calls(lambda: to_json(kind, few))
    reading = [python_calls(lambda d=document: from_json(kind, d, {})) for document in documents]
    assert reading[1] == reading[0]


LOSSES = st.floats(min_value=-1e300, max_value=1e300) | st.just(math.inf)


@given(st.dictionaries(st.tuples(st.integers(), st.integers()), st.lists(LOSSES)))
def test_rows_keep_keys_values_and_order(value: dict[tuple[int, int], list[float]]) -> None:
    kind = dict[tuple[int, int], list[float]]
    read = from_json(kind, json.loads(json.dumps(to_json(kind, value))), {})
    assert list(read.items()) == list(value.items())


class Holder:
    state = ("open", "_best")
    open: set[int]
    _best: float | None

    def __init__(self) -> None:
        self.open, self._best = {1}, None


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"open": [1]},
        {"open": [1], "best": None, "more": 1},
        {"open": 1, "best": None},
        {"open": None, "best": 0.5},
        {"open": [2], "best": "x"},
    ],
)
def test_a_strange_state_is_refused_and_changes_nothing(document: dict[str, object]) -> None:
    holder = Holder()
    with pytest.raises(ConfigurationError, match="not the state of this tuner"):
        set_state(holder, holder.state, document, {})
    assert state_to_json(holder, holder.state) == {"open": [1], "best": None}


TUNERS: list[Callable[[], SampledTuner]] = [
    lambda: ASHA(SPACE, trials=25, max_steps=60),
    lambda: Hyperband(SPACE, trials=25, max_steps=9, eta=3),
    lambda: SHA(SPACE, trials=9, max_steps=9, eta=3),
    lambda: PBT(SPACE, population=5, max_steps=6),
    lambda: MedianStopping(SPACE, trials=4, max_steps=8),
]


@pytest.mark.parametrize("make", TUNERS)
def test_snapshots_of_another_form_are_refused(make: Callable[[], Tuner]) -> None:
    with pytest.raises(ConfigurationError, match="not a snapshot"):
        make().restore({"members": []})
    for state in ({}, {"brackets": 3, "open": []}, {"open": [99], "rule": {}}):
        with pytest.raises(ConfigurationError, match="not the state"):
            make().restore({**make().snapshot(), "state": state})


@pytest.mark.parametrize("make", TUNERS)
def test_every_option_is_part_of_the_identity(make: Callable[[], SampledTuner]) -> None:
    tuner = make()
    names = {option.name for option in fields(tuner.options)}
    # Only where there is no `max_steps`, and only with standard brackets.
    names -= {"horizon", "kept"} - tuner.identity().keys()
    assert names
    assert names <= tuner.identity().keys()
