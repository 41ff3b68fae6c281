"""The cost of audits: a study with and without, on two worker processes that compute."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Client, Worker
from figures import Figure, main
from spaces import STEPS, hippo_144
from trainers import Computing, loops_for

import dasktune as dt
from dasktune.cluster.local import local_client
from dasktune.graph.audits import SHARE_OF_STEPS
from dasktune.storage.verdicts import Verdicts
from dasktune.trainer.check_resume.verdict import verdict
from dasktune.trainer.check_switch import SWITCH

WORKERS = 2
STEP_SECONDS = 0.005
ROUNDS = 3
MOST = 0.03
"""The most that audits may cost, over what the study costs without them."""

PARTS = ("run", "audit")
"""The methods of the worker's host that train stages, and audit them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One run: seconds of the call and of its workers' CPUs, its steps, and its audits.

    `stage_cpu` and `audit_cpu` are CPU seconds of the threads that train, counted around each stage
    and each audit: what else a machine does changes them little.
    """

    seconds: float
    worker_cpu: float
    stage_cpu: float
    audit_cpu: float
    steps: int
    steps_audited: int
    audits: int


def measure(short: bool) -> list[Figure]:
    """Train with audits between two runs without, several times."""
    os.environ[SWITCH] = "on"  # before the workers start
    steps, rounds = (STEPS // 10, 1) if short else (STEPS, ROUNDS)
    step_seconds = STEP_SECONDS / 10 if short else STEP_SECONDS
    loops = loops_for(step_seconds)
    with local_client(WORKERS) as client:
        client.run(_count_cpu)
        _run(client, 2, loops, is_audited=False)  # what a first run costs is in none of them
        ran = [
            tuple(_run(client, steps, loops, is_audited=each == 1) for each in range(3))
            for _ in range(rounds)
        ]
    before, audited, after = ran[-1]
    note = (
        f"{audited.steps:,} steps on {WORKERS} workers that compute {step_seconds * 1e3:g} ms a "
        f"step; {audited.seconds:.1f} s between {before.seconds:.1f} and {after.seconds:.1f} s"
    )
    walls = [[each.seconds for each in runs] for runs in ran]
    cpus = [[each.worker_cpu for each in runs] for runs in ran]
    shares = [runs[1].audit_cpu / runs[1].stage_cpu for runs in ran]
    return [
        Figure(
            name="CPU time of audits over that of stages, counted in the workers",
            value=statistics.median(shares),
            unit="x",
            at_most=MOST,
            note=f"each {', '.join(f'{share:.4f}' for share in shares)}",
        ),
        _ratio("wall time with audits over that without", walls, note),
        _noise("wall time of two runs without audits, one over the other", walls),
        _ratio("CPU time of workers with audits over that without", cpus),
        _noise("CPU time of workers of two runs without, one over the other", cpus),
        Figure(
            name="steps of audits over trained steps",
            value=audited.steps_audited / audited.steps,
            unit="x",
            at_most=SHARE_OF_STEPS,
            note=f"{audited.steps_audited:,} of {audited.steps:,}",
        ),
        Figure(name="audits", value=audited.audits, note="all identical"),
    ]


def _ratio(name: str, rounds: list[list[float]], note: str = "") -> Figure:
    """Return the median over rounds of the middle one over the mean of the two beside it."""
    ratios = [2 * audited / (before + after) for before, audited, after in rounds]
    every = ", ".join(f"{ratio:.3f}" for ratio in ratios)
    value = statistics.median(ratios)
    note = "; ".join(filter(None, [note, f"each {every}"]))
    return Figure(name=name, value=value, unit="x", at_most=1.0 + MOST, note=note)


def _noise(name: str, rounds: list[list[float]]) -> Figure:
    """Return the median over rounds of the larger one of the runs without over the smaller one."""
    value = statistics.median(max(each[::2]) / min(each[::2]) for each in rounds)
    return Figure(name=name, value=value, unit="x", note="the ratio above is no finer")


def _run(client: Client, steps: int, loops: int, *, is_audited: bool) -> Ran:
    """Run the grid in a new study, whose trainer a check has passed."""
    with tempfile.TemporaryDirectory() as folder:
        study = dt.create_study(
            Computing,
            name="audits",
            storage=Path(folder) / "store",
            metric="value",
            direction="minimize",
            config={"loops": loops},
        )
        row, results = study.results.row, study.results
        passed = verdict(row.spec["fingerprint"], "cpu", ok=True, text="passed")
        Verdicts(results.database, results.store.files).record(passed)
        share = {} if is_audited else {"audit": 0.0}
        parts, cpu, began = _cpu_of_parts(client), _worker_cpu(client), time.perf_counter()
        study.optimize(
            dt.algos.Grid(hippo_144(), max_steps=steps), client=client, progress=False, **share
        )
        seconds, cpu = time.perf_counter() - began, _worker_cpu(client) - cpu
        of_stages, of_audits = (
            after - before for before, after in zip(parts, _cpu_of_parts(client), strict=True)
        )
        summary = study.summary()
        study.close()
    return Ran(
        seconds=seconds,
        worker_cpu=cpu,
        stage_cpu=of_stages,
        audit_cpu=of_audits,
        steps=summary["steps_executed"],
        steps_audited=summary["steps_audited"],
        audits=summary["audits"]["identical"],
    )


def _count_cpu(dask_worker: Worker) -> None:
    """Have a worker count the CPU seconds of its stages, and of its audits."""
    from dasktune.worker.host import StageHost

    counted: Any = dict.fromkeys(PARTS, 0.0)
    vars(dask_worker)["counted_cpu"] = counted

    def count(part: str) -> None:
        work = getattr(StageHost, part)

        def counting(host: StageHost, spec: Any) -> Any:
            began = time.thread_time()
            try:
                return work(host, spec)
            finally:
                counted[part] += time.thread_time() - began

        setattr(StageHost, part, counting)

    for part in PARTS:
        count(part)


def _counted_cpu(dask_worker: Worker) -> dict[str, float]:
    return dict(vars(dask_worker)["counted_cpu"])


def _cpu_of_parts(client: Client) -> list[float]:
    """Return the CPU seconds of all stages so far, and of all audits."""
    counted = client.run(_counted_cpu).values()
    return [sum(each[part] for each in counted) for part in PARTS]


def _worker_cpu(client: Client) -> float:
    return sum(client.run(time.process_time).values())


if __name__ == "__main__":
    sys.exit(main("audits", measure))
