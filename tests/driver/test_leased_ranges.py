"""The leases of other drivers on a path, against a reference that compares all, step by step."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.driver import leased_ranges
from dasktune.driver.leased_ranges import LeasedRanges
from dasktune.sequences import Constant, Linear, MultiStep, Sequence, sequence_from_json
from dasktune.storage.leases import HeldLeases, HeldLeasesCodec, Lease, LeaseMark, LeaseName
from tests.call_counter import python_calls

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
    return Lease(
        key=key,
        root=root or ROOTS[0],
        study="study",
        holder="h",
        sequences={"lr": rate.to_json()},
        start=start,
        stop=stop,
        step=max(start, min(step, stop)),
        expires=0.0,
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
    return HeldLeases(holder=name, study="s", expires=expires, leases=own)


def values(lease: Lease, stop: int) -> list[object]:
    rate = sequence_from_json(lease.sequences["lr"])
    return [rate(step) for step in range(stop)]


def expected(
    lease: Lease,
    drivers: Collection[HeldLeases],
    heeded: Collection[LeaseMark | LeaseName],
) -> int | None:
    """Return the start of the nearest lease around one, none before the lease's own."""
    starts = []
    for driver in drivers:
        for other in driver.leases:
            is_done = other.is_done or driver.expires <= NOW
            first = max(lease.start, other.start)
            shared = max(other.start, lease.start + 1)
            if (
                other.root == lease.root
                and first < min(lease.stop, other.step if is_done else other.stop)
                and values(lease, shared) == values(other, shared)
                and (other.holder, other.key) not in heeded
                and not (is_done and other.mark in heeded)
            ):
                starts.append(first)
    return min(starts, default=None)


@given(objects=objects, own=st.lists(leases, min_size=1, max_size=4), data=st.data())
def test_around_finds_the_nearest_lease_on_a_path(
    objects: list[list[Lease]], own: list[Lease], data: st.DataObject
) -> None:
    ranges, codec = LeasedRanges(), HeldLeasesCodec()
    past: list[Lease] = []
    for there in objects or [[]]:
        expires = NOW + data.draw(st.sampled_from([60, -60]))
        drivers = [
            driver_of(there[:3], "h1", expires),
            driver_of(there[3:], "h2"),
        ]
        names = [(each.holder, each.key) for driver in drivers for each in driver.leases]
        marks = [each.mark for driver in drivers for each in driver.leases]
        heeded = data.draw(st.sets(st.sampled_from([*names, *marks]))) if names else set()
        # Leases that have not changed are the same objects, as after reading.
        read = [codec.decode(each.holder, codec.encode(each)) for each in drivers]
        assert read == drivers
        remembered = replace(driver_of([]), leases=tuple(past))
        for lease in own:
            found = ranges.around(lease, [each for each in read if each], now=NOW, heeded=heeded)
            start = None if found is None else max(found.start, lease.start)
            assert start == expected(lease, [*drivers, remembered], heeded)
            if found is not None:
                is_live = expires > NOW or found.holder == "h2"
                assert found.is_held(NOW) == (is_live and not found.is_done)
        past += [each for driver in drivers for each in driver.leases if each.is_done]


def test_ended_lease_is_remembered_after_its_driver_lists_it() -> None:
    ended = replace(lease_of(Constant(0.5), 2, 4, step=4, key="c2"), saved=(3,), is_done=True)
    running = lease_of(Constant(0.5), 6, 8, key="c6")
    ranges, behind = LeasedRanges(), lease_of(Constant(0.5), 1, 3, key="c9")
    ranges.prepare([driver_of([ended, running])])
    ranges.prepare([driver_of([])])
    found = ranges.around(behind, [driver_of([])], now=NOW)
    assert found == replace(ended, holder="h", expires=NOW + 60)
    assert ranges.around(behind, [driver_of([])], now=NOW, heeded={ended.mark}) is None
    after = lease_of(Constant(0.5), 5, 8, key="c9")
    assert ranges.around(after, [driver_of([])], now=NOW) is None


def test_departed_drivers_are_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leased_ranges, "MOST_ENDED", 5)
    there = [replace(lease_of(Constant(0.5), 2, 4, key=f"c{at}"), is_done=True) for at in range(2)]
    departed = [driver_of(there, f"h{number}", NOW - 999) for number in range(4)]
    ranges = LeasedRanges()
    remembered = ranges.prepare([driver_of(there, "live")], [*departed, driver_of([], "idle", 0)])
    assert [driver.holder for driver in remembered] == ["h2", "h3"]


def test_taken_lease_is_seen_beside_an_ended_one_of_its_key() -> None:
    ended = replace(lease_of(Constant(0.5), 0, 8, step=2), is_done=True)
    taken = lease_of(Constant(0.5), 0, 8)
    driver = driver_of([taken, ended])
    inside = lease_of(Constant(0.5), 5, 8, key="c9")
    found = LeasedRanges().around(inside, [driver], now=NOW)
    assert found is not None
    assert not found.is_done
    assert HeldLeasesCodec().decode("h", HeldLeasesCodec().encode(driver)) == driver


LONG = 10**12


@pytest.mark.parametrize(
    "rates",
    [
        [Constant(0.5).to_json(), {"family": "exec"}],
        [Linear(0.5, 0.5, period=LONG).to_json(), Linear(0.5, 0.5, period=LONG + 1).to_json()],
        [Constant(0.5).to_json(), {**Constant(0.5).to_json(), "more": 1}],
        [Constant(0.5).to_json(), 5],
    ],
    ids=["unknown", "equal for ever", "odd", "no document"],
)
def test_forged_lease_hides_no_other(rates: list[dict[str, object]]) -> None:
    """Each begins late, where comparing two paths step by step would take days."""
    forged = [
        replace(lease_of(RATES[0], at, LONG), key=f"d{at}", sequences={"lr": rate})
        for at, rate in enumerate(rates * 2, LONG - 9)
    ]
    forged += [replace(each, key=f"e{each.key}", start=0) for each in forged]
    rate = MultiStep(0.5, [5], 0.1)
    drivers = [driver_of(forged, "h1"), driver_of([lease_of(rate, 2, 8)], "h2")]
    found = LeasedRanges().around(lease_of(rate, 6, 8, key="c9"), drivers, now=NOW)
    assert found is not None
    assert found.holder == "h2"


def test_search_visits_as_much_beside_more_leases() -> None:
    """Half of them begin with other values, the others have other values where they begin."""

    def calls(count: int) -> int:
        ranges, codec = LeasedRanges(), HeldLeasesCodec()
        there = [lease_of(Constant(1.0 + at), 0, 9000, key=f"a{at:04}") for at in range(count)]
        there += [
            lease_of(MultiStep(0.5, [4000], 0.1 + at), 4000, 9000, key=f"b{at:04}")
            for at in range(count)
        ]
        inside = lease_of(MultiStep(0.5, [4000], 1.1), 5000, 6000, key="c9")

        def look(driver: HeldLeases) -> None:
            read = codec.decode("h", codec.encode(driver))
            assert read is not None
            found = ranges.around(inside, [read], now=NOW)
            assert found is not None
            assert found.key == "b0001"

        driver = HeldLeases(holder="h", study="s", expires=NOW + 60, leases=tuple(there))
        look(driver)
        there[-1] = replace(there[-1], step=4600)
        later = replace(driver, expires=NOW + 61, leases=tuple(there))
        return python_calls(lambda: look(later))

    assert calls(50) == calls(1000)
