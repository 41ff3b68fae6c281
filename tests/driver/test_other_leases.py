"""The leases of other drivers on a path, against a reference that compares all, step by step."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune._driver import other_leases
from dasktune._driver.other_leases import OtherLeases, in_the_way
from dasktune._engine.timeouts import LEASE_LIMIT_SECONDS, LEASE_MEET_SECONDS
from dasktune.graph.plan import SearchPlan
from dasktune.sequences import Constant, Linear, MultiStep, Sequence
from dasktune.storage.leases import HeldLeases, Lease, LeaseMark

STEPS, NOW = 8, 1000.0
ROOTS = ("aa" * 16, "bb" * 16)
RATES: list[Sequence] = [
    Constant(0.5),
    Linear(0.5, 0.5, period=STEPS),
    *(MultiStep(0.5, [at], gamma) for at in (1, 3, 5) for gamma in (0.5, 0.1)),
]

steps = st.integers(0, STEPS)


def lease_of(
    rate: Sequence, start: int, stop: int, *, key: str = "c0", step: int = 0, root: str = ""
) -> Lease:
    first = SearchPlan(root or ROOTS[0]).register(0, {"lr": rate}, 1).key_at(1)
    return Lease(
        holder="h",
        key=key,
        first=first,
        sequences={"lr": rate},
        start=start,
        stop=stop,
        step=max(start, min(step, stop)),
    )


leases = st.builds(
    lambda rate, span, step, key, root: lease_of(
        rate, min(span), max(span), step=step, key=key, root=root
    ),
    st.sampled_from(RATES),
    st.tuples(steps, steps),
    steps,
    st.sampled_from(["c0", "c1", "c2", "c3"]),
    st.sampled_from(ROOTS),
)
ended = st.builds(replace, leases, is_done=st.booleans())
objects = st.lists(st.lists(ended, max_size=6, unique_by=lambda each: each.key), max_size=4)


def driver_of(there: Iterable[Lease], name: str = "h", expires: float = NOW + 60) -> HeldLeases:
    own = tuple(replace(each, holder=name) for each in there)
    return HeldLeases(holder=name, study="s", expires=expires, leases=own, sees=("me",))


def values(lease: Lease, stop: int) -> list[object]:
    return [lease.sequences["lr"](step) for step in range(stop)]


def expected(
    lease: Lease, root: str, others: Iterable[tuple[Lease, str]], heeded: Collection[LeaseMark]
) -> int | None:
    """Return the start of the nearest lease in the way, none before the lease's own."""
    starts = []
    for other, its_root in others:
        first = max(lease.start, other.start)
        shared = max(other.start, lease.start + 1)
        if (
            its_root == root
            and first < min(lease.stop, other.step if other.is_done else other.stop)
            and values(lease, shared) == values(other, shared)
            and not {other.name, other.mark} & {*heeded}
        ):
            starts.append(first)
    return min(starts, default=None)


def root_of(lease: Lease) -> str:
    return next(
        root
        for root in ROOTS
        if SearchPlan(root).register(0, lease.sequences, 1).key_at(1) == lease.first
    )


@given(objects=objects, own=st.lists(leases, min_size=1, max_size=4), data=st.data())
def test_in_the_way_is_the_nearest_lease_on_a_path(
    objects: list[list[Lease]], own: list[Lease], data: st.DataObject
) -> None:
    known = OtherLeases("me", "mine")
    past: dict[LeaseMark, Lease] = {}
    for there in objects or [[]]:
        is_gone = data.draw(st.booleans())
        expires = NOW - 60 if is_gone else NOW + 60
        drivers = [driver_of(there[:3], "h1", expires), driver_of(there[3:], "h2")]
        known.read(drivers, NOW)
        listed = [
            each.ended() if each.holder == "h1" and is_gone else each
            for driver in drivers
            for each in driver.leases
        ]
        past |= {each.name: each for each in listed if each.is_done and each.step > each.start}
        running = [each for each in listed if not each.is_done]
        others = [(each, root_of(each)) for each in (*running, *past.values())]
        marks = [mark for each, _ in others for mark in (each.name, each.mark)]
        heeded = data.draw(st.sets(st.sampled_from(marks))) if marks else set()
        for lease in own:
            found = known.in_the_way(lease, heeded, NOW)
            start = None if found is None else max(found.start, lease.start)
            assert start == expected(lease, root_of(lease), others, heeded)


def test_ended_lease_is_remembered_after_its_driver_lists_it() -> None:
    ended = replace(lease_of(Constant(0.5), 2, 4, step=4, key="c2"), saved=(3,), is_done=True)
    running = lease_of(Constant(0.5), 6, 8, key="c6")
    known, behind = OtherLeases("me", "mine"), lease_of(Constant(0.5), 1, 3, key="c9")
    known.read([driver_of([ended, running])], NOW)
    known.read([driver_of([])], NOW)
    assert known.in_the_way(behind, (), NOW) == ended
    assert known.in_the_way(behind, {ended.mark}, NOW) is None
    assert known.in_the_way(lease_of(Constant(0.5), 5, 8, key="c9"), (), NOW) is None


def test_lease_of_a_driver_that_is_gone_has_ended() -> None:
    known, there = OtherLeases("me", "mine"), lease_of(Constant(0.5), 0, 8, step=5)
    known.read([driver_of([there])], NOW)
    assert known.current(there, NOW) == there
    assert known.current(there, NOW + 61) == there.ended(), "also while the store is away"
    later = replace(there, step=6, saved=(6,))
    known.read([driver_of([later])], NOW)
    assert known.current(there, NOW) == later
    for drivers in ([driver_of([later], expires=NOW - 1)], [], [driver_of([])]):
        known.read(drivers, NOW)
        assert known.current(there, NOW) == later.ended()
    inside = lease_of(Constant(0.5), 5, 8, key="c9")
    assert known.in_the_way(inside, (), NOW) == later.ended()


@pytest.mark.parametrize("is_done", [False, True])
def test_leases_of_a_driver_that_ended_long_ago_have_ended(is_done: bool) -> None:
    there = replace(lease_of(Constant(0.5), 0, 8, step=5), is_done=is_done)
    known, inside = OtherLeases("me", "mine"), lease_of(Constant(0.5), 2, 4, key="c9")
    known.read([driver_of([there], expires=NOW - 2 * LEASE_LIMIT_SECONDS)], NOW)
    assert known.in_the_way(inside, (), NOW) == there.ended()
    assert not known.live
    known.read([], NOW)
    assert known.in_the_way(inside, (), NOW) == there.ended(), "its file was removed"


def test_leases_of_a_driver_that_expired_are_remembered_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(other_leases, "MOST_REMEMBERED", 1)
    drivers = [
        driver_of([lease_of(Constant(0.5), 0, 8, step=5)], f"h{age}", NOW - age) for age in (1, 2)
    ]
    known, inside = OtherLeases("me", "mine"), lease_of(Constant(0.5), 2, 4, key="c9")
    for _ in range(2):
        known.read(drivers, NOW)
        latest = known.in_the_way(inside, (), NOW)
        assert latest is not None
        assert latest.holder == "h1", "the driver that ended last"
    later = driver_of([lease_of(Constant(0.5), 0, 8, step=5)], "h3")
    known.read([later, *drivers], NOW)
    known.read([*drivers, later], NOW + 60)
    latest = known.in_the_way(inside, (), NOW + 60)
    assert latest is not None
    assert latest.holder == "h3"


def test_drivers_of_the_same_study_are_taken_over() -> None:
    known = OtherLeases("me", "mine")
    known.read([replace(driver_of([lease_of(Constant(0.5), 0, 8)]), study="mine")], NOW)
    assert not known.live
    assert known.in_the_way(lease_of(Constant(0.5), 5, 8, key="c9"), (), NOW) is None


def test_ended_leases_are_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_leases, "MOST_REMEMBERED", 2)
    there = [
        replace(lease_of(Constant(0.5), at, at + 1, step=9, key=f"c{at}"), is_done=True)
        for at in range(3)
    ]
    known = OtherLeases("me", "mine")
    known.read([driver_of(there)], NOW)
    owns = [lease_of(Constant(0.5), at, at + 1, key="d0") for at in range(3)]
    assert [known.in_the_way(own, (), NOW) for own in owns] == [None, there[1], there[2]]


def test_lease_that_runs_comes_before_an_ended_one_of_its_key() -> None:
    ended = replace(lease_of(Constant(0.5), 0, 8, step=6), is_done=True)
    running = lease_of(Constant(0.5), 0, 8)
    known = OtherLeases("me", "mine")
    known.read([driver_of([ended, running])], NOW)
    assert known.in_the_way(lease_of(Constant(0.5), 5, 8, key="c9"), (), NOW) == running
    assert known.current(ended, NOW) == running


def test_nothing_is_answered_until_all_others_see_this_driver() -> None:
    known, unmet = OtherLeases("me", "mine"), replace(driver_of([]), sees=())
    known.read([unmet, driver_of([], "h2")], NOW)
    assert not known.may_answer(NOW + LEASE_MEET_SECONDS - 1)
    known.read([unmet], NOW + 3)
    assert not known.may_answer(NOW + LEASE_MEET_SECONDS - 1)
    assert known.may_answer(NOW + LEASE_MEET_SECONDS), "it does not answer"
    known.read([driver_of([])], NOW + 3)
    assert known.may_answer(NOW + 3)


LONG = 10**12


@pytest.mark.parametrize(
    "rate",
    [
        {"lr": Linear(0.5, 0.5, period=LONG)},
        {"lr": Linear(0.5, 0.5, period=LONG + 1)},
        {"lr": MultiStep(0.5, [5], 0.1)[:1]},
        {"rate": Constant(0.5)},
        {},
    ],
    ids=["equal for ever", "longer", "too short", "another name", "nothing"],
)
def test_forged_lease_hides_no_other(rate: dict[str, Sequence]) -> None:
    """Each begins late, or is long: comparing two paths step by step would take days."""
    there = lease_of(MultiStep(0.5, [5], 0.1), 2, 8)
    long = replace(there, sequences=rate, stop=LONG)
    forged = [replace(long, key="d0", start=LONG - 9), replace(long, key="d1", start=7)]
    inside = replace(there, key="c9", start=6)
    assert in_the_way(inside, [*forged, there]) == there
