"""Keys of long curves: how long they hold up the driver's loop, and what a step of them costs."""

from __future__ import annotations

import queue
import time
from contextlib import suppress

from figures import Figure, main

from dasktune.driver.stage_keys import KeysHashed, StageKeys
from dasktune.graph.events import RunStage
from dasktune.graph.keys import root_key
from dasktune.graph.plan import Node, SearchPlan
from dasktune.sequences import Constant, Cosine, Exponential, Sequence

STEPS, SHORT_STEPS = 10_000_000, 100_000
TRIALS = 3
PAUSE_MS, STEP_US = 50.0, 0.5
TURN_SECONDS = 0.001
"""How long the loop waits for messages in a turn."""


def measure(short: bool) -> list[Figure]:
    """Start stages with curves of 10 million steps in a loop that does nothing else."""
    steps = SHORT_STEPS if short else STEPS
    curve = Exponential(0.1, gamma=1 - 1 / steps)
    shared = [{"lr": curve, "width": Constant(2**trial)} for trial in range(TRIALS)]
    different = [{"lr": Cosine(0.1 + trial, steps)} for trial in range(TRIALS)]
    return [
        *_figures("one curve, shared", shared, steps, short),
        *_figures("a curve each", different, steps, short),
    ]


def _figures(what: str, paths: list[dict[str, Sequence]], steps: int, short: bool) -> list[Figure]:
    """Return the longest pause of the loop, and the CPU time of a step."""
    plan = SearchPlan(root_key("long", 0))
    nodes = [plan.register(number, path, steps) for number, path in enumerate(paths)]
    began, loop_began = time.process_time(), time.thread_time()
    pauses, loop_pauses = _turns(nodes)
    seconds, in_loop = time.process_time() - began, time.thread_time() - loop_began
    each = len(paths) * steps
    name = f"{len(paths)} trials of {steps:,} steps, {what}"
    note = "from one look into the inbox to the next; other processes may add to it"
    return [
        Figure(
            name=f"longest pause of the driver's loop, {name}",
            value=max(pauses) * 1e3,
            unit="ms",
            at_most=None if short else PAUSE_MS,
            note=f"{note}; {max(loop_pauses) * 1e3:.1f} ms of CPU time",
        ),
        Figure(
            name=f"CPU time of the driver's loop per step, {name}",
            value=in_loop / each * 1e6,
            unit="us",
            at_most=None if short else STEP_US,
            note=f"and {(seconds - in_loop) / each * 1e6:.2f} us in the thread",
        ),
    ]


def _turns(nodes: list[Node]) -> tuple[list[float], list[float]]:
    """Start a stage for each node; return the seconds of each turn, and those of CPU time."""
    inbox: queue.SimpleQueue[KeysHashed] = queue.SimpleQueue()
    keys = StageKeys(lambda attempt: True, inbox.put)
    waiting = [_order(node, number) for number, node in enumerate(nodes)]
    started, pauses, loop_pauses = 0, [], []
    while started < len(nodes):
        messages = []
        with suppress(queue.Empty):
            messages.append(inbox.get(timeout=TURN_SECONDS))
        began, loop_began = time.perf_counter(), time.thread_time()
        keys.turn()
        for message in messages:
            started += len(keys.receive(message))
        for order in waiting:
            started += len(keys.start(order))
        waiting = []
        pauses.append(time.perf_counter() - began)
        loop_pauses.append(time.thread_time() - loop_began)
    keys.close()
    return pauses, loop_pauses


def _order(node: Node, number: int) -> RunStage:
    return RunStage(
        attempt=str(number),
        order=number,
        worker="worker",
        after=None,
        node=node,
        start=node.start,
        stop=node.stop,
        saves=(),
        needs={},
    )


if __name__ == "__main__":
    raise SystemExit(main("long_curves", measure))
