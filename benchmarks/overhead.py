"""Overhead: whole processes of dasktune next to bare Dask, in interleaved pairs.

Everything is on in dasktune: checkpoints, the database, the progress display. Bare Dask has one
`client.submit` and one `log_event` a trial and makes nothing durable. Each contestant is a whole
process, from its start to its end, imports and the start of the same local cluster included.

ASHA runs next to Optuna's successive halving on the same cluster, where ``optuna-integration`` is
installed: each trial is a task, and a storage in the scheduler's memory is shared by all tasks.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from figures import Figure, main

WORKERS = 2
IN_FLIGHT = 4
"""Trials that bare Dask has under way at a time, as dasktune sends two to each worker."""

ROUNDS, SHORT_ROUNDS = 5, 1
CONTESTANT_OPTION = "--contestant"
STEP_SECONDS = 0.005
ETA = 4
"""Of ASHA, whose rungs go from 1 step to all."""

SET_CHILD_SUBREAPER = 36
"""Of `prctl` of Linux."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work of dasktune and of a baseline, with the largest ratio of their wall times."""

    name: str
    trials: int
    steps: int
    most: float
    baseline: str = "distributed"


BASELINES = {
    "distributed": "bare Dask",
    "optuna-dask": "Optuna on Dask",
}
"""Contestants next to which dasktune runs, in words."""

WORKS = {
    "few": Work(name="500 no-op trials", trials=500, steps=1, most=1.4),
    "many": Work(name="2000 no-op trials", trials=2000, steps=1, most=1.4),
    "reports": Work(name="16 trials of many reports", trials=16, steps=1000, most=1.5),
    "asha": Work(
        name="ASHA of 256 trials of 5 ms a step",
        trials=256,
        steps=64,
        most=0.5,
        baseline="optuna-dask",
    ),
    "start": Work(name="start to first step", trials=1, steps=1, most=1.3),
}
SHORT_WORKS = ("start",)

Times = tuple[float, float]
"""Wall and CPU seconds of a process."""


def measure(short: bool, parts: Sequence[str] = tuple(WORKS)) -> list[Figure]:
    """Run dasktune and the baseline of each work in turns."""
    return [
        figure
        for name in parts
        if (name in SHORT_WORKS or not short) and _is_installed(WORKS[name].baseline)
        for figure in _compared(name, SHORT_ROUNDS if short else ROUNDS)
    ]


def _compared(name: str, rounds: int) -> Iterator[Figure]:
    """Yield the ratios of wall and CPU time; which one is first changes from round to round."""
    work = WORKS[name]
    contestants = (work.baseline, "dasktune")
    taken: dict[str, list[Times]] = {contestant: [] for contestant in contestants}
    for number in range(rounds):
        for contestant in contestants if number % 2 == 0 else reversed(contestants):
            taken[contestant].append(_run(contestant, name, work.trials, work.steps))
    for index, kind, bound in ((0, "wall", work.most), (1, "CPU", None)):
        plain, own = ([times[index] for times in taken[each]] for each in contestants)
        ratios = sorted(ours / base for base, ours in zip(plain, own, strict=True))
        yield Figure(
            name=f"dasktune, {work.name}, over {BASELINES[work.baseline]}, {kind}",
            value=median(ratios),
            unit="x",
            at_most=bound,
            note=f"median of {rounds}, {ratios[0]:.2f} to {ratios[-1]:.2f}; "
            f"{median(own):.2f} s and {median(plain):.2f} s",
        )


def _is_installed(name: str) -> bool:
    return name != "optuna-dask" or importlib.util.find_spec("optuna_integration") is not None


def _run(name: str, work: str, trials: int, steps: int) -> Times:
    """Return how long a contestant's process lives, or until its first step; and its CPU time."""
    _adopt_orphans()
    with tempfile.TemporaryDirectory() as folder:
        asked = json.dumps({"name": name, "work": work, "trials": trials, "steps": steps})
        command = [sys.executable, __file__, CONTESTANT_OPTION, asked, folder]
        output = Path(folder) / "output"
        began, before = time.time(), _cpu_seconds()
        with output.open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
            process.wait()
        seconds = time.time() - began
        with suppress(ChildProcessError):
            while True:  # until none is left that it has started
                os.waitpid(-1, 0)
        cpu_seconds = _cpu_seconds() - before
        first = Path(folder) / "first-step"
        if work == "start":
            seconds = float(first.read_text()) - began if first.exists() else float("nan")
        text = output.read_text()
    if process.returncode or text.split()[-1:] != [str(trials)]:
        raise RuntimeError(f"{name} must finish {trials} trials:\n{text}")
    return seconds, cpu_seconds


def _adopt_orphans() -> None:
    """Have what a contestant leaves behind end as a child of this process: its time counts, too."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


# ------------------------------------------------------------------------- bare Dask


@contextmanager
def _bare_cluster(folder: Path) -> Iterator[Any]:
    """Give the client of a cluster of as many workers as dasktune's own."""
    from dask.distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=WORKERS,
            threads_per_worker=1,
            memory_limit=0,
            dashboard_address="127.0.0.1:0",
            local_directory=str(folder),
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def _distributed(work: str, trials: int, steps: int, folder: Path) -> int:
    """Submit a function for each trial, a few at a time; the cluster is as dasktune's own."""
    from dask.distributed import as_completed

    heard: list[object] = []
    with _bare_cluster(folder) as client:
        client.subscribe_topic("trials", heard.append)

        def submit(number: int) -> Any:
            return client.submit(_trial, work, number, steps, str(folder), pure=False)

        numbers = iter(range(trials))
        pending = as_completed([submit(n) for _, n in zip(range(IN_FLIGHT), numbers, strict=False)])
        done = 0
        for future in pending:
            future.result()
            done += 1
            for number in numbers:
                pending.add(submit(number))
                break
        return done


def _trial(work: str, number: int, steps: int, folder: str) -> float:
    """Train a trial in a worker: report once, or at each step."""
    from dask.distributed import get_worker

    if work == "start":
        _note_first_step(folder)
    worker, value = get_worker(), 0.0
    for step in range(steps if work == "reports" else 1):
        worker.log_event("trials", {"trial": number, "step": step, "value": value})
    return value


def _note_first_step(folder: str) -> None:
    Path(folder, "first-step").write_text(str(time.time()))


# -------------------------------------------------------------------------- dasktune


def _dasktune(work: str, trials: int, steps: int, folder: Path) -> int:
    """Run a random search or ASHA, whose trials have nothing in common."""
    from spaces import all_different
    from trainers import Counting, First, Nothing

    import dasktune as dt

    trainer: type[dt.Trainer] = Nothing
    config: Mapping[str, object] = {}
    tuner: dt.algos.Tuner = dt.algos.Random(all_different(), trials=trials, max_steps=steps)
    if work == "asha":
        trainer, config = Counting, {"log": str(folder / "log"), "seconds": STEP_SECONDS}
        tuner = dt.algos.ASHA(
            all_different(), trials=trials, max_steps=steps, min_steps=1, eta=ETA, brackets=[0]
        )
    elif work == "start":
        trainer, config = First, {"folder": str(folder)}
    study = dt.create_study(
        trainer,
        name="overhead",
        storage=folder / "store",
        metric="value",
        direction="minimize",
        config=config,
    )
    study.optimize(tuner, workers=WORKERS, progress=True)
    if work == "asha":
        return len(study.trials)
    # Nothing was saved by sharing: the first step of any trial is another state.
    if study.summary()["steps_executed"] != trials * steps:
        raise RuntimeError(f"every trial must be trained, got {study.summary()}")
    return sum(trial.state.value == "COMPLETE" for trial in study.trials)


# ---------------------------------------------------------------------------- Optuna


def _optuna_on_dask(work: str, trials: int, steps: int, folder: Path) -> int:
    """Run Optuna's form of ASHA, which stops trials: one task a trial, as its manual shows."""
    import optuna
    from dask.distributed import wait
    from optuna_integration.dask import DaskStorage

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=ETA)
    with _bare_cluster(folder) as client:
        study = optuna.create_study(
            storage=DaskStorage(client=client),
            sampler=optuna.samplers.RandomSampler(),
            pruner=pruner,
        )
        objective = partial(_report_and_prune, steps)
        tasks = [
            client.submit(study.optimize, objective, n_trials=1, pure=False) for _ in range(trials)
        ]
        wait(tasks)
        return len(study.trials)


def _report_and_prune(steps: int, trial: Any) -> float:
    """Train a trial of Optuna: its loss grows with its learning rate, as that of `Counting`."""
    import optuna

    rate = trial.suggest_float("lr", 1e-5, 1.0, log=True)
    trial.suggest_categorical("batch_size", [64, 128])
    for step in range(1, steps + 1):
        time.sleep(STEP_SECONDS)
        trial.report(rate * step, step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return float(rate * steps)


CONTESTANTS: dict[str, Callable[[str, int, int, Path], int]] = {
    "distributed": _distributed,
    "dasktune": _dasktune,
    "optuna-dask": _optuna_on_dask,
}


if __name__ == "__main__":
    if CONTESTANT_OPTION in sys.argv:
        asked, scratch = sys.argv[-2:]
        order = json.loads(asked)
        contestant = CONTESTANTS[order.pop("name")]
        print(contestant(**order, folder=Path(scratch)))
    else:
        parts = {"nargs": "+", "choices": WORKS, "default": tuple(WORKS), "help": "only these"}
        sys.exit(main("overhead", measure, parts=parts))
