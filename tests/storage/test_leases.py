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

from dasktune.sequences import Constant, MultiStep
from dasktune.storage import layout
from dasktune.storage.files.base import Files
from dasktune.storage.files.objects import open_files
from dasktune.storage.leases import Lease, Leases, SaveRequest

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
