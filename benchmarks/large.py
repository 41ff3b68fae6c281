"""A study of 100,000 trials, 1,000,000 reports and 10,000,000 steps: running it, and reading it.

The study is simulated on 512 workers, once without a database, which gives the cost of an event
and the memory of a trial, and once with its log. Then the written study is read in every way, each
in a process of its own, and goes on with a few more trials. A tenth of the study shows what grows
faster than the study.

    python benchmarks/large.py --folder /tmp/large
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import dask
from figures import Figure, main
from spaces import all_different
from threads import client_of_threads
from written import open_study, write_study

import dasktune as dt
from dasktune._cluster.local import LOCAL_SETTINGS
from dasktune._dashboard.access import HEADER
from dasktune._dashboard.process import served
from dasktune.simulate import Simulation

TRIALS, SHORT_TRIALS = 100_000, 200
STEPS, REPORT_EVERY = 100, 10
REPORTS = STEPS // REPORT_EVERY
WORKERS = 512
MORE_TRIALS = 64
"""Trials that are added to a study that is opened again."""

PARTS = ("simulated", "written")
EVENT_US, TRIAL_KB = 100.0, 3.0
GROWTH = 15.0
"""Most CPU time of a study over that of a tenth of it."""

QUIET: Mapping[str, Any] = {"progress": False, "last_line": False, "check": False}
CALL = "--call"


def tuner_of(trials: int) -> dt.algos.Random:
    """Return a tuner whose trials have nothing in common."""
    return dt.algos.Random(all_different(), trials=trials, max_steps=STEPS)


def measure(short: bool, folder: Path | None = None, parts: Sequence[str] = PARTS) -> list[Figure]:
    """Simulate, write, read and go on with studies of two sizes; run a part live."""
    trials = SHORT_TRIALS if short else TRIALS
    sizes = (trials,) if short else (trials // 10, trials)
    place = folder or Path(tempfile.mkdtemp(prefix="large-"))
    figures: list[Figure] = []
    try:
        if "simulated" in parts:
            figures += _simulated({size: _called("simulated", place, size) for size in sizes})
        if "written" in parts:
            figures += _written(place, sizes)
    finally:
        if folder is None:
            shutil.rmtree(place)
    return figures


def _written(place: Path, sizes: Sequence[int]) -> Iterator[Figure]:
    """Write studies of these sizes if they are not there, then read each in every way."""
    for size in sizes:
        if not _study(place, size).exists():
            _called("written", place, size)
    trials = sizes[-1]
    nbytes = sum(path.stat().st_size for path in _study(place, trials).rglob("*.db"))
    yield Figure(name=f"database of {trials:,} trials", value=nbytes / 2**20, unit="MiB")
    for name in READS:
        measured = [_called(name, place, size) for size in sizes]
        yield from _reading(f"{name}, {trials:,} trials", measured)


def _study(place: Path, trials: int) -> Path:
    return place / f"{trials}"


def _simulated(measured: Mapping[int, Mapping[str, float]]) -> list[Figure]:
    """Return the cost of an event and of a trial on the virtual clock, for each size."""
    return [
        figure
        for trials, each in measured.items()
        for figure in (
            Figure(
                name=f"driver CPU of an event, {trials:,} trials",
                value=each["cpu"] / (each["events"] + trials * REPORTS) * 1e6,
                unit="us",
                at_most=EVENT_US,
                note=f"{each['events']:,.0f} starts, saves and ends, {trials * REPORTS:,} reports; "
                f"{each['cpu']:.1f} s, {each['cpu'] / each['events'] * 1e6:.0f} us by starts, "
                f"saves and ends alone; simulated on {WORKERS} workers",
            ),
            Figure(
                name=f"memory of a trial, {trials:,} trials",
                value=each["grown_mebibytes"] * 1024 / trials,
                unit="kB",
                at_most=TRIAL_KB,
                note=f"{each['grown_mebibytes']:,.0f} MiB, with {REPORTS} reports a trial and the "
                "simulation's result",
            ),
        )
    ]


def _reading(name: str, measured: list[dict[str, float]]) -> list[Figure]:
    """Return the cost of reading a study, and its growth from a tenth to the whole."""
    *small, large = measured
    note = f"wall {large['seconds']:.1f} s, {large['mebibytes']:,.0f} MiB"
    return [
        Figure(name=f"CPU of {name}", value=large["cpu"], unit="s", note=note),
        *(
            Figure(
                name=f"growth of {name}",
                value=large["cpu"] / tenth["cpu"],
                unit="x",
                at_most=GROWTH,
                note=f"{tenth['cpu']:.2f} s for a tenth",
            )
            for tenth in small
        ),
    ]


# ------------------------------------------------------------------------------ the calls


def simulate(folder: Path, trials: int) -> dict[str, float]:
    """Simulate without a database; return the number of events and what it grew by.

    A study of one trial is simulated before: modules that it imports are no trial's memory.
    """
    _simulated_study(1)
    before = _most_mebibytes()
    ran = _simulated_study(trials)
    return {"events": len(ran.events), "grown_mebibytes": _most_mebibytes() - before}


def _simulated_study(trials: int) -> Simulation:
    return dt.simulate(
        tuner_of(trials), lambda values, step: 1 / step, workers=WORKERS, report_every=REPORT_EVERY
    )


def write(folder: Path, trials: int) -> None:
    """Simulate with the log and all rows written."""
    write_study(folder, tuner_of(trials), report_every=REPORT_EVERY, workers=WORKERS)


def go_on(folder: Path, trials: int) -> None:
    """Open the study and train some more trials, on a copy of its database."""
    with (
        tempfile.TemporaryDirectory(dir=folder.parent) as copy,
        dask.config.set(LOCAL_SETTINGS),
        client_of_threads(2) as client,
    ):
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        study = open_study(Path(copy))
        study.optimize(tuner_of(trials + MORE_TRIALS), client=client, **QUIET)
        study.close()


def _on_study(read: Callable[[dt.Study], object]) -> Callable[[Path, int], None]:
    def call(folder: Path, trials: int) -> None:
        study = open_study(folder)
        read(study)
        study.close()

    return call


def _command(*words: str) -> Callable[[Path, int], None]:
    def call(folder: Path, trials: int) -> None:
        command = [sys.executable, "-m", "dasktune", words[0], str(folder / "store"), *words[1:]]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    return call


def page(folder: Path, trials: int) -> dict[str, float]:
    """Request the answers that the page needs first; return the seconds until they are here.

    The CPU time is also that of the stage tree, which the server prepares after that.
    """
    began = time.perf_counter()
    with served(str(folder / "store" / "dasktune.db")) as address:
        base, _, token = address.partition("#")
        for question in ("studies", "overview/1", "trials/1?since=0"):
            request = urllib.request.Request(f"{base}api/{question}")
            request.add_header(HEADER, token.rpartition("=")[2])
            urllib.request.urlopen(request).read()
        return {"seconds": time.perf_counter() - began}


READS: Mapping[str, Callable[[Path, int], Any]] = {
    "opening a study": _on_study(lambda study: None),
    "best_trial": _on_study(lambda study: study.best_trial),
    "trials": _on_study(lambda study: study.trials),
    "trials_dataframe": _on_study(lambda study: study.trials_dataframe()),
    "summary": _on_study(lambda study: study.summary()),
    "dasktune status": _command("status"),
    "dasktune ls": _command("ls"),
    "dasktune report": _command("report", "--output", os.devnull),
    "the page's first answers": page,
    f"going on with {MORE_TRIALS} more trials": go_on,
}

CALLS: Mapping[str, Callable[[Path, int], Any]] = {"simulated": simulate, "written": write, **READS}


def _called(name: str, place: Path, trials: int) -> dict[str, float]:
    """Call one of `CALLS` in a process of its own; return what it says, and what it took."""
    command = [sys.executable, __file__, CALL, name, str(_study(place, trials)), str(trials)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} of {trials} trials must succeed:\n{done.stderr}")
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(f"{name}, {trials:,} trials: {measured['cpu']:.2f} s of CPU", flush=True)
    return measured


def _call(name: str, folder: Path, trials: int) -> None:
    """Print what a call returns, with its times and the memory of this process and its own."""
    began, cpu = time.perf_counter(), _cpu_seconds()
    returned = CALLS[name](folder, trials) or {}
    taken = {"seconds": time.perf_counter() - began, "cpu": _cpu_seconds() - cpu}
    print(json.dumps({**taken, "mebibytes": _most_mebibytes(), **returned}))


def _cpu_seconds() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _most_mebibytes() -> float:
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(each).ru_maxrss for each in whose) / 1024


if __name__ == "__main__":
    if CALL in sys.argv:
        chosen, given, size = sys.argv[-3:]
        _call(chosen, Path(given), int(size))
    else:
        sys.exit(
            main(
                "large",
                measure,
                parts={"nargs": "+", "choices": PARTS, "default": PARTS, "help": "only these"},
                folder={"type": Path, "help": "folder for the studies, which stay there"},
            )
        )
