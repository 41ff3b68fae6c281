"""Leases in a store: one driver gets each, others hear what it saved, nobody is trusted."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path as File
from uuid import uuid4

import pytest

from dasktune.engine.timeouts import LEASE_LIMIT_SECONDS
from dasktune.sequences import Constant, MultiStep
from dasktune.storage import layout
from dasktune.storage.files.base import Files
from dasktune.storage.files.objects import open_files
from dasktune.storage.leases import (
    MOST_ENDS,
    HeldLeases,
    HeldLeasesCodec,
    Lease,
    Leases,
    SaveRequest,
)

ROOT, KEY = "aa" * 16, "b1" * 16
NOW = 1000.0


@pytest.fixture(params=["path", "memory"])
def files(request: pytest.FixtureRequest, tmp_path: File) -> Iterator[Files]:
    url = str(tmp_path) if request.param == "path" else f"memory://{uuid4().hex}"
    return open_files(url)


def lease(holder: str = "h1", study: str = "", **more: object) -> Lease:
    made = Lease(
        key=KEY,
        root=ROOT,
        study=study or holder,
        holder=holder,
        sequences={"lr": Constant(0.1).to_json()},
        start=0,
        stop=10,
        step=0,
        expires=NOW + 60,
    )
    return replace(made, **more)  # type: ignore[arg-type]


def test_lease_round_trips() -> None:
    one = lease(saved=(3, 5), is_done=True, of="c1" * 16)
    assert Lease.from_bytes(one.to_bytes()) == one


@pytest.mark.parametrize(
    ("expires", "is_held"),
    [
        (NOW, False),
        (NOW + 0.5, True),
        (NOW + LEASE_LIMIT_SECONDS, True),
        (NOW + LEASE_LIMIT_SECONDS + 1, False),
    ],
)
def test_lease_and_driver_live_up_to_their_end(expires: float, is_held: bool) -> None:
    assert lease(expires=expires).is_held(NOW) is is_held
    assert not lease(expires=expires, is_done=True).is_held(NOW)
    assert HeldLeases(holder="h1", study="s", expires=expires).is_live(NOW) is is_held


@pytest.mark.parametrize(
    ("expires", "lately"),
    [
        (NOW + 0.5, False),
        (NOW, True),
        (NOW - LEASE_LIMIT_SECONDS + 1, True),
        (NOW - LEASE_LIMIT_SECONDS, False),
    ],
)
def test_driver_has_ended_lately_for_a_while(expires: float, lately: bool) -> None:
    driver = HeldLeases(holder="h1", study="s", expires=expires)
    assert driver.has_ended_lately(NOW) is lately


def test_lease_misses_trained_steps_that_it_does_not_save() -> None:
    one = lease(step=6, saved=(2,), saves=(4,))
    assert [step for step in range(8) if one.misses(step)] == [0, 1, 3, 5, 6]
    assert not lease(step=10).misses(10), "the state at its end is saved"


def test_lease_is_renewed_by_what_is_later() -> None:
    one = lease(step=3, saves=(4, 7), saved=(2,))
    assert one.renewed(None) is one
    assert one.renewed(lease("h2", step=9)) is one
    later = lease(step=5, expires=NOW + 90, saves=(6, 4))
    both = replace(one, step=5, expires=NOW + 90, saves=(4, 6, 7))
    assert (one.renewed(later), later.renewed(one)) == (both, replace(both, saved=()))
    done = lease(is_done=True)
    assert one.renewed(done) is done
    assert one.ended() == replace(one, is_done=True)


def test_part_names_its_whole_lease() -> None:
    one = lease(step=3, saves=(4,), saved=(2,))
    part = replace(one, key="c1" * 16, of=KEY, sequences={}, saved=())
    assert one.part("c1" * 16) == part


def test_codec_reads_what_a_driver_writes_anew() -> None:
    codec, writer = HeldLeasesCodec(), HeldLeasesCodec()
    first = HeldLeases(holder="h1", study="s", expires=NOW, leases=(lease(), lease(key="c1" * 16)))
    content = writer.encode(first)
    decoded = codec.decode("h1", content)
    assert decoded == first
    assert codec.decode("h1", content) is decoded
    assert codec.decode("h2", content) is None, "the object of another driver"
    second = replace(first, expires=NOW + 5, sees=("h2",), leases=(lease(step=4),))
    assert codec.decode("h1", writer.encode(second)) == second
    empty = replace(first, leases=())
    assert codec.decode("h1", writer.encode(empty)) == empty


def test_codec_uses_lines_again_and_forgets_drivers() -> None:
    codec, writer = HeldLeasesCodec(), HeldLeasesCodec()
    first = HeldLeases(holder="h1", study="s", expires=NOW, leases=(lease(),))
    before = codec.decode("h1", writer.encode(first))
    codec.forget_all_but(["h1", "h3"])
    after = codec.decode("h1", writer.encode(replace(first, expires=NOW + 1)))
    assert before is not None
    assert after is not None
    assert after.leases[0] is before.leases[0]
    codec.forget_all_but(["h3"])
    again = codec.decode("h1", writer.encode(replace(first, expires=NOW + 1)))
    assert again == after
    assert again is not after


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "dasktune-lease"},
        {"version": 2},
        {"holder": 1},
        {"study": None},
        {"expires": 1000},
        {"expires": float("inf")},
        {"sees": [1]},
        {"sees": 1},
    ],
)
def test_invalid_object_of_a_driver_is_no_leases(files: Files, changes: dict[str, object]) -> None:
    driver = HeldLeases(holder="h1", study="s", expires=NOW, leases=(lease(),), sees=("h2",))
    document = json.loads(HeldLeasesCodec().encode(driver))
    leases, path = Leases(files), layout.driver_path("h1")
    files.replace(path, json.dumps(document).encode())  # without lines, as older versions wrote
    assert leases.drivers(["h0", "h1"]) == [driver]
    files.replace(path, json.dumps({**document, **changes}).encode())
    assert leases.drivers(["h0", "h1"]) == []


def test_object_with_a_lease_of_another_is_refused() -> None:
    own = HeldLeases(holder="h1", study="s", expires=NOW, leases=(lease("h1"),))
    mixed = replace(own, leases=(lease("h2"), lease("h1")))
    assert HeldLeasesCodec().decode("h1", HeldLeasesCodec().encode(own)) == own
    assert HeldLeasesCodec().decode("h1", HeldLeasesCodec().encode(mixed)) is None


def test_object_that_a_driver_still_writes_is_no_driver(files: Files) -> None:
    leases = Leases(files)
    driver = HeldLeases(holder="h1-7-node.lab", study="s", expires=NOW, leases=())
    leases.hold(driver)
    files.replace(f"{layout.DRIVERS}/{driver.holder}.{'0a' * 16}", b"begun")
    assert leases.holders() == ["h1-7-node.lab"]


def test_lease_is_read_as_its_driver_renewed_it(files: Files) -> None:
    leases = Leases(files)
    leases.take(lease("h1"), NOW)
    driver = HeldLeases(holder="h1", study="h1", expires=NOW + 500, leases=(lease("h1", step=7),))
    leases.hold(driver)
    assert leases.read(ROOT, [KEY]) == [lease("h1", step=7, expires=NOW + 500)]
    assert leases.holders() == ["h1"]
    assert leases.take(lease("h2"), NOW + 70) == lease("h1", step=7, expires=NOW + 500)
    elsewhere = lease("h1", step=8, root="cc" * 16)
    leases.hold(replace(driver, leases=(elsewhere,)))
    assert leases.read(ROOT, [KEY]) == [lease("h1")], "a lease below another root"
    leases.leave(driver)
    assert (leases.holders(), leases.drivers(["h1"])) == ([], [])
    leases.hold(driver)
    leases.write(lease("h1", is_done=True))
    assert leases.read(ROOT, [KEY]) == [lease("h1", is_done=True)]


@pytest.mark.parametrize(
    ("progress", "prevents"),
    [({}, False), ({"step": 1}, True), ({"saved": (4,)}, True)],
)
def test_ended_lease_prevents_others_once_it_trained(
    files: Files, progress: dict[str, object], prevents: bool
) -> None:
    leases = Leases(files)
    ended = lease("h1", is_done=True, **progress)
    leases.write(ended)
    assert leases.take(lease("h2"), NOW) == (ended if prevents else None)
    leases.write(ended)
    assert leases.take(lease("h2"), NOW, heeded=[ended.mark]) is None
    assert leases.read(ROOT, [KEY]) == [lease("h2")]


def test_all_files_below_a_root_are_listed_and_removed(files: Files) -> None:
    leases = Leases(files)
    leases.take(lease(), NOW)
    request = SaveRequest(sequences={"lr": Constant(0.1)}, ends=(5,))
    path = leases.request_saves(ROOT, "h1", 0, [request])
    paths = [layout.lease_path(ROOT, KEY), path]
    assert [place for place, _ in leases.all(ROOT)] == paths
    assert list(leases.all("cc" * 16)) == []
    leases.remove(paths[:1])
    assert [place for place, _ in leases.all(ROOT)] == [path]


def test_concurrent_takes_have_one_winner(files: Files) -> None:
    barrier = threading.Barrier(8, timeout=60)

    def take(number: int) -> Lease | None:
        barrier.wait()
        return Leases(files).take(lease(f"h{number}"), NOW)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(take, range(8)))
    winners = [f"h{number}" for number, answer in enumerate(answers) if answer is None]
    assert len(winners) == 1
    assert {answer.holder for answer in answers if answer is not None} == set(winners)


def test_take_is_refused_until_the_lease_expires(files: Files) -> None:
    leases = Leases(files)
    assert leases.take(lease("h1"), NOW) is None
    assert leases.take(lease("h2"), NOW + 59) == lease("h1")
    assert leases.take(lease("h2"), NOW + 61) is None
    assert leases.take(lease("h3"), NOW + 62, heeded=None) is None, "h2's ended with h1's"


def test_lease_with_a_distant_end_is_not_held(files: Files) -> None:
    leases = Leases(files)
    leases.write(lease("h1", expires=1e300))
    assert leases.take(lease("h2"), NOW) is None


def test_take_returns_a_done_lease_with_saved_states(files: Files) -> None:
    leases = Leases(files)
    leases.take(lease("h1"), NOW)
    done = lease("h1", saved=(4,), is_done=True)
    leases.write(done)
    assert leases.take(lease("h2"), NOW) == done
    assert leases.take(lease("h2"), NOW, heeded=None) is None
    assert leases.read(ROOT, [KEY]) == [lease("h2")]


def test_take_replaces_a_lease_of_the_same_study(files: Files) -> None:
    leases = Leases(files)
    leases.take(lease("h1", study="s"), NOW)
    assert leases.take(lease("h2", study="s"), NOW) is None
    assert leases.take(lease("h3", study="t"), NOW) == lease("h2", study="s")


def test_part_ends_with_its_whole_lease(files: Files) -> None:
    leases = Leases(files)
    whole, later = lease("h1"), "d4" * 16
    leases.take(whole, NOW)
    assert leases.take(whole.part(later), NOW) is None
    theirs = lease("h2", key=later, start=4)
    assert leases.take(theirs, NOW) == whole, "who meets the part hears of the lease"
    leases.write(replace(whole, is_done=True))
    assert leases.take(theirs, NOW) is None
    assert leases.read(ROOT, [later, "ff" * 16]) == [theirs, None]


GOOD = json.loads(lease().to_bytes())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b"[" * 100_000,
        json.dumps({**GOOD, "version": 2}).encode(),
        json.dumps({**GOOD, "start": "0"}).encode(),
        json.dumps({**GOOD, "stop": -1}).encode(),
        json.dumps({**GOOD, "saved": [True, 2.5]}).encode(),
        json.dumps({**GOOD, "saved": None}).encode(),
        json.dumps({**GOOD, "of": "../../etc/passwd"}).encode(),
        json.dumps({**GOOD, "expires": "never"}).encode(),
        json.dumps({**GOOD, "expires": float("inf")}).encode(),
        json.dumps({**GOOD, "expires": 10**400}).encode(),
        json.dumps({**GOOD, "sequences": 5}).encode(),
        json.dumps({**GOOD, "key": "c1" * 16}).encode(),
        json.dumps({**GOOD, "root": "../.."}).encode(),
        json.dumps({**GOOD, "more": 1}).encode(),
    ],
)
def test_invalid_lease_is_replaced(files: Files, content: bytes) -> None:
    files.replace(layout.lease_path(ROOT, KEY), content)
    leases = Leases(files)
    assert leases.read(ROOT, [KEY]) == [None]
    assert leases.take(lease("h2"), NOW) is None
    assert leases.read(ROOT, [KEY]) == [lease("h2")]


def test_save_requests_are_read_once(files: Files) -> None:
    leases = Leases(files)
    one = SaveRequest(sequences={"lr": MultiStep(0.1, [3], gamma=0.5)}, ends=(5, 9))
    known: dict[str, tuple[int, int]] = {}
    assert list(leases.save_requests(ROOT, known)) == []
    leases.request_saves(ROOT, "h1", 0, [one])
    assert list(leases.save_requests(ROOT, known)) == [one]
    assert list(leases.save_requests(ROOT, known)) == []
    leases.request_saves(ROOT, "h1", 0, [one, one, one])
    assert len(list(leases.save_requests(ROOT, known))) == 2, "the file has grown by two"
    leases.request_saves(ROOT, "h1", 1, [one])
    assert list(leases.save_requests(ROOT, known, own="h1")) == []
    assert list(leases.save_requests(ROOT, known)) == [one]
    assert list(leases.save_requests("cc" * 16, {})) == []


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[1]",
        b'[{"sequences": {"lr": {"family": "exec"}}, "ends": [1]}]',
        b'[{"sequences": {"lr": {"family": "Constant", "value": 1}}, "ends": ["x"]}]',
        b'[{"sequences": 7, "ends": []}]',
        b'[{"sequences": {"lr": {"family": "Constant", "value": 1}}, "ends": [5, 0]}]',
        b'[{"sequences": {"lr": {"family": "Constant", "value": 1}}, "ends": []}]',
        b'[{"sequences": {"lr": {"family": "Constant", "value": 1}}, "ends": 5}]',
    ],
)
def test_invalid_save_requests_are_ignored(files: Files, content: bytes) -> None:
    files.replace(f"{layout.save_request_folder(ROOT)}/h1-0", content)
    assert list(Leases(files).save_requests(ROOT, {})) == []


@pytest.mark.parametrize(("count", "is_read"), [(MOST_ENDS, True), (MOST_ENDS + 1, False)])
def test_request_for_too_many_steps_is_ignored(files: Files, count: int, is_read: bool) -> None:
    leases = Leases(files)
    request = SaveRequest(sequences={"lr": Constant(0.1)}, ends=tuple(range(1, count + 1)))
    leases.request_saves(ROOT, "h1", 0, [request])
    assert list(leases.save_requests(ROOT, {})) == ([request] if is_read else [])
