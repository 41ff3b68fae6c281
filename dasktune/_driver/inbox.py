"""The messages that the driver's loop receives, and their order. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dasktune._driver.lease_messages import LeaseMessage
from dasktune._driver.look_ups import LookedUp
from dasktune._driver.lost_workers import LookUpEnded
from dasktune._driver.reuse import CommitsRead
from dasktune._driver.stage_keys import KeysHashed
from dasktune._worker.messages import LeaveAnnounced, WorkerMessage
from dasktune.graph.events import Granted, SaveMissed, Tick, WorkerJoined, WorkerLost, WorkersJoined


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFinished:
    """Dask is done with an attempt."""

    attempt: str


OtherMessage = (
    WorkerMessage
    | WorkerLost
    | SaveMissed
    | AttemptFinished
    | Granted
    | LeaseMessage
    | KeysHashed
    | LookUpEnded
    | LookedUp
    | CommitsRead
    | Tick
)

InboxMessage = OtherMessage | WorkerJoined
"""All that the loop receives from other threads and processes."""

TurnMessage = OtherMessage | WorkersJoined
"""All that one turn of the loop handles."""


def joins_together(messages: Iterable[InboxMessage]) -> list[TurnMessage]:
    """Return the messages of one turn with the joined workers together, ahead of the others.

    Stages are placed after each message. If the workers were known one by one, those that joined
    first would get the stages, however slow they are. Likewise a stage that ended makes room on
    its worker only after the new workers are known.

    Messages about workers stay in order with those that join: the messages may say that a worker
    is lost, and that another one has joined at its address.
    """
    ordered: list[TurnMessage] = []
    joined: list[WorkerJoined] = []
    others: list[OtherMessage] = []
    for message in messages:
        match message:
            case WorkerJoined():
                joined.append(message)
            case WorkerLost() | LeaveAnnounced() | LookUpEnded() | Granted():
                ordered += [*_event_of(joined), *others, message]
                joined, others = [], []
            case _:
                others.append(message)
    return [*ordered, *_event_of(joined), *others]


def _event_of(joined: list[WorkerJoined]) -> list[WorkersJoined]:
    return [WorkersJoined(workers=tuple(joined))] if joined else []
