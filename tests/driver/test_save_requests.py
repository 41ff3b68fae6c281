"""Save requests of other drivers are found by value, whatever their sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import hypothesis.strategies as st
from hypothesis import given

from dasktune._driver.lease_messages import LeaseAnswered, SavesRequested
from dasktune._driver.leases import Leasing
from dasktune._driver.other_leases import Heeded
from dasktune._driver.recorder import Recorder
from dasktune._driver.shared_stages import MergedPaths, SharedStages
from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import RunStage, SavePoint, WorkerJoined
from dasktune.graph.save_policy import SavePolicy
from dasktune.graph.view import RunView
from dasktune.sequences import Constant, MultiStep, Piecewise, Sequence
from dasktune.storage.leases import Lease, SaveRequest
from dasktune.types import Sequences, Step

HORIZON = 12
PATHS: st.SearchStrategy[Sequence] = st.one_of(
    st.sampled_from([Constant(0.5), Constant(0.25)]),
    st.integers(1, HORIZON - 1).map(lambda at: MultiStep(0.5, [at], gamma=0.5)),
    st.integers(1, HORIZON - 1).map(lambda at: Piecewise([0.5, 0.25], boundaries=[at])),
)


def shared(one: Sequence, other: Sequence) -> int:
    """Return how many first steps two paths have in common."""
    same = (one(step) == other(step) for step in range(HORIZON))
    return next((step for step, alike in enumerate(same) if not alike), HORIZON)


@given(
    others=st.lists(st.tuples(PATHS, st.sets(st.integers(1, HORIZON), min_size=1)), max_size=5),
    mine=PATHS,
    start=st.integers(0, HORIZON - 1),
    length=st.integers(1, HORIZON),
)
def test_states_are_requested_at_ends_and_last_branches(
    others: list[tuple[Sequence, set[int]]], mine: Sequence, start: int, length: int
) -> None:
    stop = min(HORIZON, start + length)
    requested = MergedPaths()
    for path, ends in others:
        requested.add("a1", {"lr": path}, ends)
    found = [step for step in requested.steps("a1", {"lr": mine}, stop) if start < step < stop]
    ends_on_way = {
        end for path, ends in others for end in ends if end <= shared(path, mine) and end < stop
    }
    leaves = {min(shared(path, mine), max(ends)) for path, ends in others}
    assert set(found) >= {step for step in ends_on_way | leaves if start < step < stop}
    cuts = {shared(one, two) for one, _ in others for two, _ in others}
    allowed = ends_on_way | leaves | cuts
    assert set(found) <= {step for step in allowed if start < step < stop}
    assert list(found) == sorted(found)


def test_paths_of_other_roots_and_names_are_left_out() -> None:
    requested = MergedPaths()
    requested.add("a1", {"lr": Constant(0.5)}, [3])
    assert requested.steps("a1", {"lr": Constant(0.5)}, 9) == [3]
    assert requested.steps("b2", {"lr": Constant(0.5)}, 9) == []
    assert requested.steps("a1", {"rate": Constant(0.5)}, 9) == []


class GrantedLeases:
    """The leases of a driver that is given each at once."""

    def take(self, attempt: str, lease: Lease, heeded: Heeded) -> LeaseAnswered:
        return LeaseAnswered(attempt=attempt, other=None)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments, **options: None


class CountedSaves(MergedPaths):
    """Requested saves, which counts how many stages are compared with them."""

    compared = 0

    def steps(self, root: str, sequences: Sequences, stop: Step) -> list[Step]:
        self.compared += 1
        return super().steps(root, sequences, stop)


def test_request_is_compared_with_the_stages_on_its_path_only() -> None:
    count, root = 50, "aa" * 16
    dispatcher = Dispatcher(root, DispatchOptions(saves=SavePolicy(every=100, at_changes=False)))
    rates = [Constant(1 / (number + 1)) for number in range(count)]
    for number, rate in enumerate(rates):
        dispatcher.register(number, {"lr": rate}, HORIZON)
        dispatcher.extend(number, HORIZON, 0.0, 0.0)
    sharing = SharedStages(
        RunView(dispatcher), cast(Leasing, GrantedLeases()), cast(Recorder, None)
    )
    for number in range(count):
        for order in dispatcher.handle(WorkerJoined(worker=f"w{number}"), 0.0):
            assert isinstance(order, RunStage)
            sharing.start(order)
    requested = sharing._requested = CountedSaves()

    def asked(sequence: Sequence, end: Step) -> list[tuple[object, Step]]:
        request = SaveRequest(root=root, sequences={"lr": sequence}, ends=(end,))
        following = sharing.receive(SavesRequested(requests=(request,)), 0.0)
        saves = [save for save in following if isinstance(save, SavePoint)]
        assert len(saves) == len(following)
        orders = [sharing._running[save.attempt] for save in saves]
        return [
            (order.node.sequences["lr"], save.step)
            for order, save in zip(orders, saves, strict=True)
        ]

    assert asked(rates[3], 5) == [(rates[3], 5)]
    assert asked(MultiStep(1 / 8, [8], gamma=0.5), HORIZON) == [(rates[7], 8)]
    assert asked(Constant(2.0), 5) == []
    assert requested.compared == 2
