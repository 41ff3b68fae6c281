"""Stages on one worker, without Dask: what was trained here is never trained again here."""

from __future__ import annotations

import threading
from pathlib import Path

from dasktune.graph.keys import Chain, encode_at
from dasktune.sequences import Constant
from dasktune.worker.host import StageHost
from dasktune.worker.job import Job, StageSpec
from dasktune.worker.messages import StageEnded, StageMessage, StageStarted, StateSaved
from tests.toy_trainers import Adding
from tests.worker.held_store import PATIENCE, HeldStore

SEQUENCES = {"lr": Constant(0.1)}


def stage(attempt: str, start: int, stop: int, root: str = "aa" * 16) -> StageSpec:
    chain = Chain(root).extend(encode_at(SEQUENCES, 0), start)
    return StageSpec(
        attempt=attempt,
        start=start,
        stop=stop,
        saves=(),
        sequences={name: sequence.to_json() for name, sequence in SEQUENCES.items()},
        chain=(chain.base, chain.values.hex(), chain.length),
        seed=0,
    )


def test_a_state_on_its_way_to_the_store_is_waited_for(
    tmp_path: Path,
) -> None:
    store, messages, has_begun = HeldStore(str(tmp_path)), list[StageMessage](), threading.Event()

    def emit(sent: list[StageMessage]) -> None:
        messages.extend(sent)
        if any(isinstance(each, StageStarted) and each.attempt == "second" for each in sent):
            has_begun.set()

    store.hold()
    job = Job(trainer_class=Adding, config={}, device="cpu", store=store.url, report_every=1)
    host = StageHost(job, emit, store=store)
    first = host.run(stage("first", 0, 3))
    # Another path's stage comes in between: the warm trainer is its own from now on.
    other = host.run(stage("other", 0, 1, root="bb" * 16))
    receipts: list[StageEnded] = []
    thread = threading.Thread(target=lambda: receipts.append(host.run(stage("second", 3, 5))))
    thread.start()
    assert has_begun.wait(PATIENCE)
    assert receipts == []
    store.release()
    thread.join(PATIENCE)
    (second,) = receipts
    host.close(30)
    assert [receipt.status for receipt in (first, other, second)] == ["trained"] * 3
    assert second.step == 5
    saved = [message.attempt for message in messages if isinstance(message, StateSaved)]
    assert saved == ["first", "other", "second"]
