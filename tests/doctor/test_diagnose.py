"""Findings from facts: one table row for each thing that can be wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.doctor.checks import diagnose, severity
from dasktune.doctor.collect import offset_of
from dasktune.doctor.facts import (
    DatabaseFacts,
    Device,
    Facts,
    Look,
    Offset,
    StoreFacts,
    StoreUse,
    Torch,
    TrainerFacts,
    WorkerFacts,
)
from dasktune.doctor.findings import Diagnosis, Finding, Status
from dasktune.needs import Needs

GIB = 2**30
WORKERS = ("tcp://10.0.0.1:1", "tcp://10.0.0.2:1")
PACKAGES = {"python": "3.11.7", "dasktune": "0.1.0", "numpy": "2.4.6", "torch": None}
SETTINGS = {
    "allowed-failures": 0,
    "work-stealing": 0,
    "worker-ttl": 60.0,
    "no-workers-timeout": 60.0,
}
GPU = Device(name="H200", uuid="a", nbytes=140 * GIB, free=139 * GIB)


def look(number: int, **changes: Any) -> Look:
    fields = {
        "host": f"node{number}",
        "process": f"node{number}:1",
        "packages": PACKAGES,
        "cores": (0, 1),
        "threads": "1",
        "free": {"/tmp": 10 * GIB},
    }
    return Look(**{**fields, **changes})


def worker(number: int) -> WorkerFacts:
    return WorkerFacts(
        address=WORKERS[number],
        look=look(number, listening=("tls://10.0.0.1:1",)),
        offset=Offset(seconds=0.001, error=0.002),
        opened="",
        use=StoreUse(write=50e6, read=80e6),
    )


HEALTHY = Facts(
    trainer=TrainerFacts(name="Net", checked=True),
    driver=look(9),
    store=StoreFacts(url="s3://bucket/study", use=StoreUse()),
    database=DatabaseFacts(name="/data/dasktune.db", seconds=0.001),
    scheduler=look(
        9, listening=("tls://10.0.0.9:8786", "http://127.0.0.1:8787"), settings=SETTINGS
    ),
    workers=(worker(0), worker(1)),
)

Change = Callable[[Facts], Facts]


def of_worker(**changes: Any) -> Change:
    """Change fields of the second worker; those of its look and use by a mapping."""

    def change(facts: Facts) -> Facts:
        second = facts.workers[1]
        made = {
            name: replace(getattr(second, name), **value) if isinstance(value, dict) else value
            for name, value in changes.items()
        }
        return replace(facts, workers=(facts.workers[0], replace(second, **made)))

    return change


def of_both(**changes: Mapping[str, Any]) -> Change:
    def change(facts: Facts) -> Facts:
        made = [
            replace(
                one, **{name: replace(getattr(one, name), **new) for name, new in changes.items()}
            )
            for one in facts.workers
        ]
        return replace(facts, workers=tuple(made))

    return change


def of(part: str, **changes: Any) -> Change:
    return lambda facts: replace(facts, **{part: replace(getattr(facts, part), **changes)})


def packages(**versions: str | None) -> dict[str, Any]:
    return {"packages": {**PACKAGES, **versions}}


def scheduler(**settings: float | None) -> Change:
    return of("scheduler", settings={**SETTINGS, **settings})


def with_gpu(*claims: float, **device: Any) -> Change:
    """Give both workers a GPU each of one host, and resources."""

    def change(facts: Facts) -> Facts:
        workers = [
            replace(
                one,
                look=look(0, gpus=("H200", "H200"), resources={"GPU": claim} if claim else {}),
                torch=Torch(cuda="13.0", devices=(replace(GPU, **device),)),
            )
            for one, claim in zip(facts.workers, claims, strict=True)
        ]
        return replace(facts, workers=tuple(workers))

    return change


def unanswered(facts: Facts) -> Facts:
    silent = replace(facts.workers[1], unanswered={"answer": "no"})
    return replace(facts, workers=(facts.workers[0], silent))


SECOND, BOTH, NONE = WORKERS[1:], WORKERS, ()
W, P = Status.WARNING, Status.PROBLEM

TABLE: list[tuple[Change, str, Status, str, tuple[str, ...]]] = [
    (of_worker(look=packages(python="3.12.1")), "python", P, "3.12.1, here 3.11.7", SECOND),
    (of_worker(look=packages(python="3.11.9")), "python", W, "3.11.9", SECOND),
    (of_worker(look=packages(dasktune="0.2.0")), "dasktune", P, "0.2.0, here 0.1.0", SECOND),
    (of_worker(look=packages(dasktune=None)), "dasktune", P, "not installed", SECOND),
    (of_both(look=packages(numpy="1.26.4")), "numpy", P, "1.26.4", BOTH),
    (of_worker(look=packages(numpy="2.4.5")), "numpy", W, "2.4.5", SECOND),
    (of("scheduler", **packages(dasktune="0.0.9")), "dasktune", P, "on the scheduler", NONE),
    (of_worker(opened="ImportError: no module x"), "trainer", P, "no module x", SECOND),
    (of_worker(differing=("data",)), "trainer", P, "differs there: data", SECOND),
    (of_worker(look={"missing": ("/data/x",)}), "config", W, "/data/x exists here", SECOND),
    (of("trainer", checked=None), "resume", W, "never checked", NONE),
    (of("trainer", checked=False), "resume", P, "not to resume exactly", NONE),
    (of_worker(use={"sees": False}), "store", P, "another place there", SECOND),
    (of_worker(use={"is_seen": False}), "store", P, "another place there", SECOND),
    (of_worker(use=StoreUse(failed="create", reason="denied")), "store", P, "create in", SECOND),
    (of_worker(use={"overwrites": True}), "store", P, "lets two processes create", SECOND),
    (of("store", use=StoreUse(failed="read", reason="no bucket")), "store", P, "the driver", NONE),
    (of("store", url="memory://x"), "store", P, "one process only", BOTH),
    (of_worker(use={"write": 1e5}), "speed", W, "0.1 MB/s", BOTH),
    (of("database", problem="refused"), "database", P, "refused", NONE),
    (of("database", network="nfs"), "database", W, "(nfs)", NONE),
    (of("database", seconds=2.0), "database", W, "2.000 s", NONE),
    (of_worker(look={"free": {"/tmp": GIB}}), "disk", W, "/tmp has 1 GiB", SECOND),
    (of_worker(look={"free": {"/tmp": 1000}}), "disk", P, "GiB left", SECOND),
    (of_worker(offset=Offset(seconds=2.0, error=0.1)), "clock", W, "2.0 s ahead", SECOND),
    (of_worker(offset=Offset(seconds=-40.0, error=0.1)), "clock", P, "differ by 45 s", SECOND),
    (of("store", offset=Offset(seconds=90.0, error=1.0)), "clock", P, "the store's clock", NONE),
    (of_worker(look={"memory_free": GIB // 2}), "memory", W, "node1 has 0.5 GiB", SECOND),
    (of_worker(look={"memory_limit": 2 * GIB}), "memory", W, "more than 2 GiB", SECOND),
    (of_worker(look={"cores": (0,), "threads": ""}), "cores", Status.OK, "1 core", SECOND),
    (of_worker(look={"threads": ""}), "cores", Status.OK, "each with 2 threads", SECOND),
    (of_both(look={"host": "a", "cores": (0,)}), "cores", W, "2 workers on 1 core", BOTH),
    (of_both(look={"host": "a", "threads": ""}), "cores", W, "each with 2 threads", BOTH),
    (of_worker(look={"slots": 4}), "slots", W, "4 threads", SECOND),
    (of_worker(look={"is_daemon": True}), "processes", W, "data loaders", SECOND),
    (of_worker(look={"listening": ("tcp://10.0.0.2:1",)}), "ports", W, "without TLS", SECOND),
    (of_worker(look={"listening": ("tcp://0.0.0.0:1",)}), "ports", W, "without TLS", SECOND),
    (of_worker(look={"listening": ("tcp://[::]:1",)}), "ports", W, "without TLS", SECOND),
    (of_worker(look={"listening": ("http://0.0.0.0:1",)}), "ports", W, "the page of", SECOND),
    (of_worker(look={"listening": ("tcp://[::1]:1",)}), "ports", Status.OK, "loopback", NONE),
    (scheduler(**{"allowed-failures": 3}), "settings", W, "allowed-failures", NONE),
    (scheduler(**{"work-stealing": 1}), "settings", W, "work-stealing", NONE),
    (scheduler(**{"worker-ttl": 300.0}), "settings", W, "for 300 s", NONE),
    (scheduler(**{"no-workers-timeout": None}), "settings", W, "for ever", NONE),
    (unanswered, "answers", P, "asked to answer: no", SECOND),
    (lambda facts: replace(facts, scheduler=None), "scheduler", P, "did not answer", NONE),
    (lambda facts: replace(facts, absent="2 of 4"), "workers", W, "2 of 4", NONE),
    (lambda facts: replace(facts, absent="none", workers=()), "workers", P, "none", NONE),
    (with_gpu(1, 1, uuid="same"), "GPU", W, "2 workers on one GPU of node0, claimed 2x", BOTH),
    (with_gpu(0.5, 0.5), "GPU", Status.OK, "1 GPU, H200, 140 GiB, CUDA 13.0", BOTH),
    (with_gpu(0.5, 0.5, free=GIB), "GPU", W, "1 GiB left", BOTH),
    (with_gpu(0, 0), "GPU", W, "would not be used", BOTH),
    (
        of_worker(look={"resources": {"GPU": 1}}, torch=Torch(cuda="13.0")),
        "GPU",
        P,
        "claimed, and torch sees none",
        SECOND,
    ),
    (
        of_worker(look={"gpus": ("H200",)}, torch=Torch(cuda=None)),
        "GPU",
        W,
        "built without CUDA",
        SECOND,
    ),
    (of_worker(torch=Torch(cuda="13.0", problem="driver too old")), "GPU", P, "too old", SECOND),
    (of_worker(kind="H100 80 GB", tags=("gpu",)), "class", Status.OK, "80 GB; tags gpu", SECOND),
    (of_worker(device="GPU-1"), "packing", Status.OK, "up to 1 trial at a time on GPU-1", SECOND),
    (
        of_worker(device="GPU-1", has_mps=True, look={"resources": {"GPU": 1}}),
        "packing",
        Status.OK,
        "MPS runs",
        SECOND,
    ),
    (
        of_worker(device="GPU-1", look={"resources": {"GPU": 1}}),
        "packing",
        Status.OK,
        "MPS does not run: they take turns",
        SECOND,
    ),
    (of("trainer", needs=Needs.of({"GPU": 1})), "resources", P, "no worker has GPU=1", NONE),
]


@pytest.mark.parametrize(
    ("change", "check", "status", "words", "workers"),
    TABLE,
    ids=[f"{check}-{words}" for _, check, _, words, _ in TABLE],
)
def test_diagnose_changed_fact_gives_its_finding(
    change: Change, check: str, status: Status, words: str, workers: tuple[str, ...]
) -> None:
    found = [
        one
        for one in diagnose(change(HEALTHY))
        if (one.check, one.status) == (check, status) and words in one.found
    ]
    assert [one.workers for one in found] == [workers]
    assert bool(found[0].mend) == (status is not Status.OK)


def test_diagnose_healthy_facts_are_all_ok() -> None:
    findings = diagnose(HEALTHY)
    assert {one.status for one in findings} == {Status.OK}
    checks = {one.check for one in findings}
    assert checks >= {"versions", "trainer", "store", "speed", "database", "disk", "clock", "cores"}


def test_diagnose_silent_worker_has_one_finding() -> None:
    silent = WorkerFacts(address=WORKERS[1], unanswered={"answer": "no answer within 5 s"})
    findings = diagnose(replace(HEALTHY, workers=(HEALTHY.workers[0], silent)))
    about = [one for one in findings if WORKERS[1] in one.workers]
    assert [(one.check, one.status) for one in about] == [("answers", Status.PROBLEM)]


def test_diagnosis_merges_equal_findings_of_many_workers() -> None:
    many = [replace(worker(0), address=f"tcp://{n}:1", opened="no torch") for n in range(8)]
    found = diagnose(replace(HEALTHY, workers=tuple(many)))
    diagnosis = Diagnosis(study="digits", workers=8, seconds=1.0, findings=found)
    lines = [line for line in str(diagnosis).splitlines() if "no torch" in line]
    assert lines == ["  problem  trainer   no torch: 8 workers"]


def test_diagnosis_names_three_of_many_workers() -> None:
    one = Finding(
        group="store", check="x", status=Status.OK, found="f", workers=("a", "b", "c", "d", "e")
    )
    text = str(Diagnosis(study="digits", workers=9, seconds=1.0, findings=[one]))
    assert "f: 5 of 9 workers, a, b, c and 2 more" in text


def test_diagnosis_with_warnings_only_is_ok() -> None:
    def outcome(change: Change) -> bool:
        found = diagnose(change(HEALTHY))
        return Diagnosis(study="digits", workers=2, seconds=1.0, findings=found).ok

    assert outcome(of("trainer", checked=None))
    assert not outcome(of("trainer", checked=False))


@pytest.mark.parametrize(
    ("name", "here", "there", "status"),
    [
        ("numpy", "2.4.6", "2.4.6", None),
        ("numpy", "2.4.6", "2.3.0", Status.WARNING),
        ("numpy", "2.4.6", "3.0.0", Status.PROBLEM),
        ("dask", "2026.8.0", "2026.8.1", Status.WARNING),
        ("dask", "2026.8.0", "2026.7.0", Status.PROBLEM),
        ("scipy", "0.9.1", "0.8.1", Status.PROBLEM),
        ("torch", "2.13.0+cpu", "2.13.0+cu130", Status.WARNING),
        ("dasktune", "0.1.0", "0.1.1", Status.WARNING),
        ("dasktune", "1.1.0", "1.2.0", Status.PROBLEM),
    ],
)
def test_severity_depends_on_the_number_that_differs(
    name: str, here: str, there: str, status: Status | None
) -> None:
    assert severity(name, here, there) is status


@given(
    ahead=st.floats(-1e4, 1e4),
    ways=st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=8),
)
def test_clock_offset_is_within_its_error(ahead: float, ways: list[tuple[float, float]]) -> None:
    """For any times of the way to the worker and of the way back."""
    trips = [(100.0, 100.0 + there + ahead, 100.0 + there + back) for there, back in ways]
    found = offset_of(trips)
    assert abs(found.seconds - ahead) <= found.error + 1e-6
    assert found.error <= min(map(sum, ways)) / 2 + 1e-6


@pytest.mark.parametrize(("workers", "end"), [(0, "; the cluster had no worker to check"), (2, "")])
def test_diagnosis_without_workers_says_what_was_not_checked(workers: int, end: str) -> None:
    diagnosis = Diagnosis(study="digits", workers=workers, seconds=1.0, findings=[])
    assert str(diagnosis).splitlines()[-1] == f"no problems, no warnings{end}"
