"""How long a killed driver takes to go on, from opening its study to the first step it trains."""

from __future__ import annotations

import json
import logging
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from database import _postgresql as postgresql_server
from figures import Figure, main
from interrupted import next_records, open_study, space, write_study
from spaces import all_different
from threads import client_of_threads

import dasktune as dt
from dasktune.algos.base import Tuner
from dasktune.cluster.workers import Workers
from dasktune.driver.history import History
from dasktune.driver.reuse import KnownStates
from dasktune.driver.run import begin_tuner
from dasktune.engine.engine import Engine
from dasktune.results.results import StudyResults

TRIALS, REPORTS = 10_000, 1_000_000
SMALL_TRIALS, SMALL_REPORTS = 1_000, 100_000
"""Where samplers propose as they go or trials report often, and on PostgreSQL."""

SHORT_TRIALS, SHORT_REPORTS = 100, 2_000
SECONDS = 20.0
COMPARED = 200
"""Reports after the restart whose decisions are compared."""

STEP = "--step"
POLL_SECONDS = 0.005
MEMORY = Path("/dev/shm")
"""Where studies are written if it is there: what is measured is reading them."""

PHASES: Mapping[str, tuple[type, str]] = {
    "read the log": (History, "place_of"),
    "read trials": (History, "trials"),
    "look up states and metrics": (KnownStates, "open"),
    "rebuild the plan": (StudyResults, "dispatcher"),
    "ready workers": (Workers, "open"),
    "replay and ask again": (Engine, "resume"),
}
"""What a restart consists of, and where it happens."""


def tuner_of(kind: str, trials: int, reports: int) -> Tuner:
    """Return a tuner that has asked for about twice so many reports when all is done."""
    each = reports // trials
    rungs = {"min_steps": each // 2, "max_steps": 32 * each, "eta": 4}
    match kind:
        case "Grid":
            return dt.algos.Grid(space(trials), max_steps=2 * each)
        case "Random":
            return dt.algos.Random(all_different(), trials=trials, max_steps=2 * each)
        case "ASHA":
            return dt.algos.ASHA(all_different(), trials=trials, **rungs)
        case "ASHA with TPE":
            from optuna.samplers import TPESampler

            sampler = TPESampler(seed=0)
            return dt.algos.ASHA(all_different(), trials=trials, sampler=sampler, **rungs)
        case "Hyperband":
            return dt.algos.Hyperband(all_different(), trials=trials, **rungs)
        case _:
            # None stops: each trial has 20 reports that its tuner is told of.
            steps = 2 * each
            return dt.algos.MedianStopping(
                all_different(), trials=trials, max_steps=steps, every=steps // 20, grace=steps
            )


def measure(short: bool, postgresql: Path | None = None) -> list[Figure]:
    """Write a study for each tuner, leave it in mid-run, and go on with it in a new process."""
    large = (SHORT_TRIALS, SHORT_REPORTS) if short else (TRIALS, REPORTS)
    small = (SHORT_TRIALS, SHORT_REPORTS) if short else (SMALL_TRIALS, SMALL_REPORTS)
    kinds = ("Grid", "ASHA") if short else ("Grid", "Random", "ASHA", "Hyperband")
    others = () if short else ("ASHA with TPE", "MedianStopping")
    figures = [each for kind in kinds for each in _figures(kind, *large)]
    figures += [figure for kind in others for figure in _figures(kind, *small)]
    if short:
        return figures
    with postgresql_server(postgresql) as url:
        if url is not None:
            figures += _figures("ASHA", *small, database=url)
    return figures


def _figures(kind: str, trials: int, reports: int, database: str | None = None) -> list[Figure]:
    """Return the time, the memory and the decisions of one restart."""
    where = "SQLite" if database is None else "PostgreSQL"
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        options = {"kind": kind, "trials": trials, "reports": reports, "database": database}
        written = _in_process("write", folder, options)
        measured = _in_process("restart", folder, options)
    of = f"{kind}, {trials:,} trials, {where}"
    phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in measured["phases"].items())
    return [
        Figure(
            name=f"from opening to the first step, {of}",
            value=measured["seconds"],
            unit="s",
            at_most=SECONDS,
            note=f"{written['reports']:,} reports; CPU {measured['cpu']:.1f} s; {phases}",
        ),
        Figure(
            name=f"memory of the restarted driver, {of}",
            value=measured["mebibytes"],
            unit="MiB",
            note="at the first step; its cluster of two threads included",
        ),
        Figure(
            name=f"reports after which it decides otherwise than a driver that lives, {of}",
            value=measured["different"],
            equals=0,
            note=f"of {len(written['following'])}",
        ),
    ]


def _in_process(step: str, folder: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out one step in a process of its own: what it needs is its own, too."""
    command = [sys.executable, __file__, STEP, step, folder, json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{step} {options} must succeed:\n{done.stdout}\n{done.stderr}")
    document: dict[str, Any] = json.loads((Path(folder) / f"{step}.json").read_text())
    return document


# ------------------------------------------------------------------------------ the steps


def write(folder: Path, kind: str, trials: int, reports: int, database: str | None) -> object:
    """Write the study; return how many reports it has, and what would have followed."""
    tuner = tuner_of(kind, trials, reports)
    written, following = write_study(folder, tuner, reports, COMPARED, database)
    return {"reports": written, "following": following}


def restart(folder: Path, kind: str, trials: int, reports: int, database: str | None) -> object:
    """Go on with the study; return what that took, and whether it decides as it should."""
    logging.getLogger("dasktune").setLevel(logging.ERROR)
    tuner, phases = tuner_of(kind, trials, reports), dict.fromkeys(PHASES, 0.0)
    with _timed(phases):
        measured = _go_on(folder, tuner, database)
    phases["rebuild the plan"] -= phases["look up states and metrics"] + phases["read trials"]
    expected = json.loads((folder / "write.json").read_text())["following"]
    decided = _following(folder, tuner, database)
    pairs = zip(expected, decided, strict=False)
    different = abs(len(expected) - len(decided)) + sum(pair != other for pair, other in pairs)
    return {**measured, "phases": phases, "different": different}


def _go_on(folder: Path, tuner: Tuner, database: str | None) -> dict[str, float]:
    """Run the study until it trains; return how long that took by the clock, and of the CPU."""
    first, measured = folder / "first", {}
    began, cpu = time.time(), time.process_time()
    study = open_study(folder, database, began=first)

    def watch() -> None:
        # Read once: a second thread that begins now may be writing the file anew.
        while not (text := first.read_text() if first.exists() else ""):
            time.sleep(POLL_SECONDS)
        measured["seconds"] = float(text) - began
        measured["cpu"] = time.process_time() - cpu
        measured["mebibytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        study.stop()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    with client_of_threads(2) as client:
        study.optimize(tuner, client=client, progress=False, last_line=False)
    watcher.join(timeout=60)
    study.close()
    return measured


def _following(folder: Path, tuner: Tuner, database: str | None) -> list[Any]:
    """Return the records of further reports by an engine that continues the study."""
    study = open_study(folder, database)
    engine = study._optimizer.engine()
    begin_tuner(engine, study.results.history.place_of(tuner), {}, 0.0, 0)
    records = next_records(engine, COMPARED)
    study.close()
    return records


@contextmanager
def _timed(phases: dict[str, float]) -> Iterator[None]:
    """Add up the seconds that are spent in each phase."""
    before = {name: vars(owner)[method] for name, (owner, method) in PHASES.items()}
    for name, (owner, method) in PHASES.items():
        original = before[name]
        is_bound = isinstance(original, classmethod)
        timed = _timing(original.__func__ if is_bound else original, name, phases)
        setattr(owner, method, classmethod(timed) if is_bound else timed)
    try:
        yield
    finally:
        for name, (owner, method) in PHASES.items():
            setattr(owner, method, before[name])


def _timing(
    function: Callable[..., Any], name: str, phases: dict[str, float]
) -> Callable[..., Any]:
    def timed(*arguments: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            phases[name] += time.perf_counter() - began

    return timed


STEPS = {"write": write, "restart": restart}


if __name__ == "__main__":
    if STEP in sys.argv:
        chosen, place, given = sys.argv[-3:]
        document = STEPS[chosen](Path(place), **json.loads(given))
        (Path(place) / f"{chosen}.json").write_text(json.dumps(document))
    else:
        purpose = "a file with the URL of an empty database"
        sys.exit(main("restart", measure, postgresql=purpose))
