"""Messages of workers: what is sent is received, and what is malformed is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast, get_args

import msgpack
import pytest

from dasktune._worker.messages import (
    LeaveAnnounced,
    MessageError,
    PredictionAnswer,
    ResumeRefused,
    StageEnded,
    StageFailed,
    StageMessage,
    StageMessages,
    StagePrinted,
    StageProgress,
    StageStarted,
    StateMeasured,
    StateOmitted,
    StateSaved,
    StoreFailed,
    WorkerMessage,
    from_wire,
    packed,
    receipt_from_wire,
    to_wire,
    unpacked,
)
from tests.call_counter import python_calls

STAGE_MESSAGES: list[StageMessage] = [
    StageStarted(attempt="a1", at=1.5),
    StageProgress(attempt="a1", step=2, reports=((1, "k1", {"loss": math.inf}), (2, "k2", {}))),
    StateSaved(
        attempt="a1",
        step=2,
        key="k2",
        by="a0",
        digest="d",
        nbytes=8,
        seconds=0.5,
        reported=(1, 2),
        replaced=((1, "k1", {"loss": 1.0}),),
        paces=(0.1, 0.2),
        differs=True,
        latency=0.25,
    ),
    StateMeasured(attempt="a1", step=2, key="k2"),
    StageEnded(attempt="a1", step=2, status="stopped", at=3.0, seconds=1.0, start_seconds=0.0),
    StageFailed(attempt="a1", step=2, at=3.0, message="boom", traceback="..."),
    ResumeRefused(
        attempt="a1", step=2, at=3.0, message="- trainer.n", traceback="", paths=("trainer.n",)
    ),
    StagePrinted(attempt="a1", text="epoch 1\nepoch 2"),
    StoreFailed(attempt="a1", message="the disk is full"),
    StateOmitted(attempt="a1", step=3, key="k3", reported=(2, 3), paces=(0.5, 0.25)),
]
MESSAGES: list[WorkerMessage] = [
    StageMessages(worker="w", messages=tuple(STAGE_MESSAGES)),
    LeaveAnnounced(worker="w"),
    *(PredictionAnswer(worker="w", number=1, answer=one) for one in ({"after": 1}, "why", None)),
]


def test_messages_all_kinds_have_an_example() -> None:
    assert {type(message) for message in STAGE_MESSAGES} == set(get_args(StageMessage))
    assert {type(message) for message in MESSAGES} == set(get_args(WorkerMessage))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_message_sent_and_received_is_equal(message: WorkerMessage) -> None:
    assert from_wire(unpacked(packed(to_wire(message)))) == message


@pytest.mark.parametrize("content", [{}, b"", b"\xc1", b"\x01\x01", "text", None], ids=repr)
def test_unpacked_bytes_of_no_message_are_refused(content: object) -> None:
    with pytest.raises(MessageError, match="a message must be"):
        unpacked(content)


def test_receipt_sent_and_received_is_equal() -> None:
    receipt = StageEnded(attempt="a1", step=2, status="failed", at=3.0)
    assert receipt_from_wire(to_wire(receipt)) == receipt
    with pytest.raises(MessageError, match="must be one of StageEnded, got 'LeaveAnnounced'"):
        receipt_from_wire(to_wire(LeaveAnnounced(worker="w")))


def _contents_of(steps: int) -> tuple[dict[str, Any], ...]:
    """Return the messages about so many steps as Dask delivers them: lists are tuples."""
    numbers = tuple(range(steps))
    reports = tuple((step, f"k{step}", {"loss": 0.5, "rank": 1}) for step in numbers)
    paces = tuple(map(float, numbers))
    progress = StageProgress(attempt="a1", step=steps, reports=reports)
    saved = replace(cast(StateSaved, STAGE_MESSAGES[2]), reported=numbers, paces=paces)
    messages = (StageMessages(worker="w", messages=(one,)) for one in (progress, saved))
    return tuple(msgpack.unpackb(msgpack.packb(to_wire(one)), use_list=False) for one in messages)


def test_more_reports_take_no_more_pythonpython_calls() -> None:
    for few, many in zip(_contents_of(2), _contents_of(200), strict=True):
        assert python_calls(lambda c=many: from_wire(c)) == python_calls(lambda c=few: from_wire(c))


STARTED = to_wire(StageStarted(attempt="a1", at=1.5))
MALFORMED: dict[str, tuple[Any, str]] = {
    "no mapping": ([1], "must be a mapping"),
    "no kind": ({}, "must be one of .*, got None"),
    "unknown kind": ({"kind": "Surprise"}, "must be one of .*, got 'Surprise'"),
    "unhashable kind": ({"kind": ["x"]}, "must be one of"),
    "stage message alone": (STARTED, "must be one of"),
    "missing field": ({"kind": "LeaveAnnounced"}, r"LeaveAnnounced must have worker"),
    "another field": ({"kind": "LeaveAnnounced", "worker": "w", "why": 1}, "must have worker"),
    "wrong type": ({"kind": "LeaveAnnounced", "worker": 5}, "worker must be a text, got 5"),
}
WRONG_FIELDS: list[dict[str, Any]] = [
    {**STARTED, "at": "now"},
    {**STARTED, "at": True},
    {**to_wire(STAGE_MESSAGES[1]), "step": -1},
    {**to_wire(STAGE_MESSAGES[1]), "reports": 5},
    {**to_wire(STAGE_MESSAGES[1]), "reports": [(1, "k1")]},
    {**to_wire(STAGE_MESSAGES[1]), "reports": [(1, "k1", {"loss": "low"})]},
    *(
        {**to_wire(STAGE_MESSAGES[1]), "reports": (report,)}
        for report in (
            (1, "k1"),
            (-1, "k1", {}),
            (True, "k1", {}),
            (1, 2, {}),
            (1, "k1", [("loss", 0.5)]),
            (1, "k1", {"loss": True}),
            (1, "k1", {1: 0.5}),
            (1, "k1", {"loss": 0.5}, 2),
        )
    ),
    {**to_wire(STAGE_MESSAGES[2]), "reported": (0, -1)},
    {**to_wire(STAGE_MESSAGES[2]), "reported": (0, True)},
    {**to_wire(STAGE_MESSAGES[2]), "differs": 1},
    {**to_wire(STAGE_MESSAGES[2]), "paces": [None]},
    {**to_wire(STAGE_MESSAGES[4]), "status": "done"},
    {**to_wire(STAGE_MESSAGES[4]), "status": ["trained"]},
]


@pytest.mark.parametrize("name", MALFORMED)
def test_message_malformed_is_refused(name: str) -> None:
    content, problem = MALFORMED[name]
    with pytest.raises(MessageError, match=problem):
        from_wire(content)


@pytest.mark.parametrize("content", WRONG_FIELDS, ids=str)
def test_stage_message_malformed_is_refused(content: dict[str, Any]) -> None:
    with pytest.raises(MessageError, match=rf"{content['kind']}\.\w+ must be"):
        from_wire({"kind": "StageMessages", "worker": "w", "messages": [content]})
