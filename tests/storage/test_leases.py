"""Leases in a store: each driver's are read as it wrote them, and nobody is trusted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path as File
from uuid import uuid4

import pytest

from dasktune._engine.timeouts import LEASE_LIMIT_SECONDS
from dasktune.sequences import Constant, MultiStep
from dasktune.storage import layout
from dasktune.storage.files.base import Files
from dasktune.storage.files.objects import open_files
from dasktune.storage.leases import (
    INVALID,
    MOST_ENDS,
    HeldLeases,
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


def lease(**more: object) -> Lease:
    made = Lease(
        holder="h1",
        key=KEY,
        first="a1" * 16,
        sequences={"lr": Constant(0.1)},
        start=0,
        stop=10,
        step=0,
    )
    return replace(made, **more)  # type: ignore[arg-type]


def driver(*leases: Lease, **more: object) -> HeldLeases:
    made = HeldLeases(holder="h1", study="s", expires=NOW, leases=leases)
    return replace(made, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("expires", "is_live"),
    [
        (NOW, False),
        (NOW + 0.5, True),
        (NOW + LEASE_LIMIT_SECONDS, True),
        (NOW + LEASE_LIMIT_SECONDS + 1, False),
    ],
)
def test_driver_lives_up_to_its_end(expires: float, is_live: bool) -> None:
    assert driver(expires=expires).is_live(NOW) is is_live


@pytest.mark.parametrize(
    ("expires", "has_expired"),
    [(NOW + 2 * LEASE_LIMIT_SECONDS, False), (NOW + 0.5, False), (NOW, True), (0.0, True)],
)
def test_driver_has_expired_from_its_end_on(expires: float, has_expired: bool) -> None:
    assert driver(expires=expires).has_expired(NOW) is has_expired


def test_lease_misses_trained_steps_that_it_does_not_save() -> None:
    one = lease(step=6, saved=(2,), saves=(4,))
    assert [step for step in range(8) if one.misses(step)] == [0, 1, 3, 5, 6]
    assert not lease(step=10).misses(10), "the state at its end is saved"


def test_lease_ends_where_it_was_trained_to() -> None:
    one = lease(step=6, is_asked=True)
    assert one.end == 10
    assert one.ended() == lease(step=6, is_done=True)
    assert one.ended().end == 6
    assert one.ended().name == one.name
    assert one.ended().mark != one.mark


def test_lease_by_key_is_the_one_that_runs() -> None:
    done, running = lease(step=5, is_done=True), lease()
    assert driver(done, running).by_key == {KEY: running}


def test_drivers_are_read_as_they_wrote(files: Files) -> None:
    mine, theirs = Leases(files), Leases(files)
    first = driver(lease(saved=(3, 5), saves=(7,), is_asked=True), lease(key="c1" * 16))
    mine.hold(first)
    assert (theirs.holders(), theirs.drivers(["h0", "h1"])) == (["h1"], [first])
    second = replace(first, expires=NOW + 5, sees=("h2",), requests=3, leases=(lease(step=4),))
    mine.hold(second)
    assert theirs.drivers(["h1"]) == [second]
    mine.hold(replace(second, leases=()))
    assert theirs.drivers(["h1"]) == [replace(second, leases=())]
    mine.leave("h1")
    assert (theirs.holders(), theirs.drivers(["h1"])) == ([], [])


def test_lease_that_has_not_changed_is_not_parsed_again(files: Files) -> None:
    mine, theirs = Leases(files), Leases(files)
    mine.hold(driver(lease(), lease(key="c1" * 16)))
    before = theirs.drivers(["h1"])[0]
    mine.hold(driver(lease(), lease(key="c1" * 16, step=4), expires=NOW + 1))
    after = theirs.drivers(["h1"])[0]
    assert after.leases[0] is before.leases[0]
    assert after.leases[1].step == 4


def test_file_that_a_driver_still_writes_is_no_driver(files: Files) -> None:
    leases = Leases(files)
    leases.hold(driver(holder="h1-7-node.lab"))
    files.replace(f"{layout.DRIVERS}/h1-7-node.lab.{'0a' * 16}", b"begun")
    assert leases.holders() == ["h1-7-node.lab"]


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "dasktune-lease"},
        {"version": 1},
        {"holder": 1},
        {"study": None},
        {"expires": 1000},
        {"expires": float("inf")},
        {"sees": [1]},
        {"sees": 1},
        {"requests": "1"},
    ],
)
def test_invalid_file_of_a_driver_is_ignored(
    files: Files, changes: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    leases, path = Leases(files), layout.driver_path("h1")
    leases.hold(driver(lease(), sees=("h2",)))
    content = files.read("", [path])[0]
    assert content is not None
    head, _, rest = content.tobytes().partition(b"\n")
    altered = json.dumps({**json.loads(head + b"]}"), **changes}).encode()
    files.replace(path, altered.removesuffix(b"]}") + b"\n" + rest)
    for _ in range(2):
        assert leases.drivers(["h0", "h1"]) == []
    (warning,) = caplog.messages
    assert warning == (
        "leases in 'drivers/h1' are ignored: the file is corrupt, or of another version"
    )


def test_file_with_a_lease_of_another_is_ignored(files: Files) -> None:
    leases = Leases(files)
    leases.hold(driver(lease(), lease(holder="h2")))
    assert leases.drivers(["h1"]) == []


GOOD = lease().to_json()


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {**GOOD, "start": "0"},
        {**GOOD, "stop": -1},
        {**GOOD, "saved": [True, 2.5]},
        {**GOOD, "saved": None},
        {**GOOD, "is_done": 1},
        {**GOOD, "sequences": 5},
        {**GOOD, "sequences": {"lr": {"family": "exec"}}},
        {**GOOD, "sequences": {"lr": {**Constant(0.5).to_json(), "more": 1}}},
        {**GOOD, "key": "../../etc/passwd"},
        {**GOOD, "first": 7},
        {**GOOD, "holder": None},
        {**GOOD, "more": 1},
    ],
)
def test_invalid_lease_is_refused(files: Files, document: dict[str, object]) -> None:
    assert Lease.from_json(GOOD) == lease()
    with pytest.raises(INVALID):
        Lease.from_json(document)
    leases, path = Leases(files), layout.driver_path("h1")
    leases.hold(driver())
    content = files.read("", [path])[0]
    assert content is not None
    line = json.dumps(document).encode()
    files.replace(path, content.tobytes().replace(b"\n\n", b"\n%b\n" % line))
    assert leases.drivers(["h1"]) == []


def request(*ends: int) -> SaveRequest:
    return SaveRequest(root=ROOT, sequences={"lr": MultiStep(0.1, [3], gamma=0.5)}, ends=ends)


def test_save_requests_are_read_once(files: Files) -> None:
    leases = Leases(files)
    assert leases.save_requests("h1", 0) == []
    leases.request_saves("h1", 2, [request(5, 9), request(6)])
    assert leases.save_requests("h1", 0) == [request(5, 9), request(6)]
    assert leases.save_requests("h1", 1) == [request(6)]
    assert leases.save_requests("h1", 2) == []
    leases.request_saves("h1", 4, [request(7), request(8)])
    assert leases.save_requests("h1", 1) == [request(7), request(8)], "older ones are gone"
    assert leases.save_requests("h1", 3) == [request(8)]
    leases.leave("h1")
    assert leases.save_requests("h1", 0) == []


RATE = '{"lr": {"family": "Constant", "value": 1}}'


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[" * 100_000,
        "[1]",
        '{"total": 1}',
        '{"total": "1", "requests": [1]}',
        '{"total": 1, "requests": [1]}',
        '{"total": 1, "requests": [{"root": "aa", "sequences": 7, "ends": [1]}]}',
        *(
            f'{{"total": 1, "requests": [{{"root": "aa", "sequences": {text}, "ends": {ends}}}]}}'
            for text, ends in [
                ('{"lr": {"family": "exec"}}', "[1]"),
                (RATE, '["x"]'),
                (RATE, "[5, 0]"),
                (RATE, "[]"),
                (RATE, "5"),
            ]
        ),
    ],
)
def test_invalid_save_requests_are_ignored(files: Files, content: str) -> None:
    files.replace(layout.save_request_path("h1"), content.encode())
    assert Leases(files).save_requests("h1", 0) == []


@pytest.mark.parametrize(("count", "is_read"), [(MOST_ENDS, True), (MOST_ENDS + 1, False)])
def test_request_for_too_many_steps_is_ignored(files: Files, count: int, is_read: bool) -> None:
    leases, wanted = Leases(files), request(*range(1, count + 1))
    leases.request_saves("h1", 2, [wanted, request(5)])
    assert leases.save_requests("h1", 0) == [*([wanted] if is_read else []), request(5)]
