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
from itertools import groupby
from pathlib import Path
from typing import Any

from figures import Figure, main
from pairs import Pair, Run, released

WORKERS = 2
IN_FLIGHT = 4
"""Trials that bare Dask has under way at a time, as dasktune sends two to each worker."""

ROUNDS = 5
SHORT_ROUNDS = 1
CONTESTANT_OPTION = "--contestant"
STEP_SECONDS, ASHA_STEP_SECONDS = 0.002, 0.005
ETA = 4
"""Of ASHA, whose rungs go from 1 step to all."""

SET_CHILD_SUBREAPER = 36
"""Of `prctl` of Linux."""

RELEASED = Path(__file__).with_name("overhead.json")
"""The figures of the last release; `--json` on its machine writes them anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Something that all contestants do.

    Parameters
    ----------
    name
        In words, with the number of trials in place of {trials}.
    trials, short
        Number of trials; and in a short version, None if that leaves it out.
    steps
        Of each trial.
    over
        For each baseline, the largest ratio of dasktune's wall time to its own; None if there is
        no bound.
    """

    name: str
    trials: int
    short: int | None
    steps: int
    over: Mapping[str, float | None]


BASELINES = {
    "distributed": "bare Dask",
    "distributed-tree": "a hand-made tree on Dask",
    "optuna-dask": "Optuna on Dask",
}
"""Contestants next to which dasktune runs, in words."""


WORKS = {
    "few": Work(
        name="{trials} no-op trials", trials=500, short=None, steps=1, over={"distributed": 1.4}
    ),
    "many": Work(
        name="{trials} no-op trials", trials=2000, short=None, steps=1, over={"distributed": 1.4}
    ),
    "tree": Work(
        name="{trials} schedules of 2 ms a step",
        trials=144,
        short=None,
        steps=120,
        over={"distributed": None, "distributed-tree": 1.0},
    ),
    "reports": Work(
        name="{trials} trials of many reports",
        trials=16,
        short=None,
        steps=1000,
        over={"distributed": 1.5},
    ),
    "asha": Work(
        name="ASHA of {trials} trials of 5 ms a step",
        trials=256,
        short=None,
        steps=64,
        over={"optuna-dask": 0.5},
    ),
    "start": Work(
        name="start to first step", trials=1, short=1, steps=1, over={"distributed": 1.3}
    ),
}

OTHERS_ONCE = "others"
PARTS = (*WORKS, OTHERS_ONCE)


def measure(short: bool, parts: Sequence[str] = PARTS) -> list[Figure]:
    """Run dasktune and others in turns, then once every other tuner that is installed."""
    figures = []
    before = {} if short else released(RELEASED)
    rounds = SHORT_ROUNDS if short else ROUNDS
    for work, what in WORKS.items():
        trials = what.short if short else what.trials
        if trials is None or work not in parts:
            continue
        title = f"dasktune, {what.name.format(trials=trials)}, over"
        for baseline, bound in what.over.items():
            if _is_installed(baseline):
                pair = Pair.of(_runs(baseline, work, trials, what.steps), rounds=rounds)
                figures += pair.figures(f"{title} {BASELINES[baseline]}", bound, before)
    for name in filter(_is_installed, OTHERS if OTHERS_ONCE in parts else ()):
        trials = 20 if short else WORKS["few"].trials
        seconds, cpu_seconds = _run(name, "few", trials, 1)
        note = f"{seconds:.2f} s, CPU {cpu_seconds:.2f} s, once; {OTHERS[name]}"
        figures.append(
            Figure(name=f"{name}, {trials} no-op trials", value=seconds, unit="s", note=note)
        )
    return figures


def _runs(baseline: str, work: str, trials: int, steps: int) -> Run:
    """Return a function that runs the baseline (True) or dasktune on a work."""
    return lambda is_baseline: _run(baseline if is_baseline else "dasktune", work, trials, steps)


def _is_installed(name: str) -> bool:
    package = PACKAGES.get(name, name.partition("-")[0])
    return importlib.util.find_spec(package) is not None


def _run(name: str, work: str, trials: int, steps: int) -> tuple[float, float]:
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
    if work == "tree":
        _segment(steps, None)
    for step in range(steps if work == "reports" else 1):
        worker.log_event("trials", {"trial": number, "step": step, "value": value})
    return value


def _distributed_tree(work: str, trials: int, steps: int, folder: Path) -> int:
    """Submit each shared segment once, with the segment before it as a dependency."""
    with _bare_cluster(folder) as client:
        leaves, futures = 0, dict[tuple[int, ...], Any]()
        for path, length, is_leaf in _segments(_schedules(steps)):
            before = futures.get(path[:-1])
            futures[path] = client.submit(_segment, length, before, priority=-len(path), pure=False)
            leaves += is_leaf
        client.gather(list(futures.values()))
        return leaves


def _schedules(steps: int) -> list[list[tuple[object, ...]]]:
    """Return the values of each trial of `hippo_144` at each step."""
    from spaces import hippo_144

    return [
        [
            tuple(sequence(step) for sequence in configuration.sequences.values())
            for step in range(steps)
        ]
        for configuration in hippo_144().configurations()
    ]


def _segments(
    schedules: Sequence[Sequence[object]], at: int = 0, path: tuple[int, ...] = ()
) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Yield the segments of a tree: place, length, and how many trials end with it."""
    groups = groupby(sorted(schedules, key=lambda s: repr(s[at])), key=lambda s: repr(s[at]))
    for number, (_, members) in enumerate(groups):
        group = list(members)
        until = at + 1
        while until < len(group[0]) and len({repr(each[until]) for each in group}) == 1:
            until += 1
        here = (*path, number)
        if until == len(group[0]):
            yield here, until - at, len(group)
        else:
            yield here, until - at, 0
            yield from _segments(group, until, here)


def _segment(length: int, before: object) -> None:
    """Sleep once for each step, as a trainer does: a sleep takes a little longer than asked."""
    for _ in range(length):
        time.sleep(STEP_SECONDS)


def _note_first_step(folder: str) -> None:
    Path(folder, "first-step").write_text(str(time.time()))


# -------------------------------------------------------------------------- dasktune


def _dasktune(work: str, trials: int, steps: int, folder: Path) -> int:
    """Run a random search, whose trials have nothing in common, or the grid of schedules."""
    from spaces import all_different, hippo_144
    from trainers import Counting, First, Nothing

    import dasktune as dt

    trainer: type[dt.Trainer] = Nothing
    config: Mapping[str, object] = {}
    tuner: dt.algos.Tuner = dt.algos.Random(all_different(), trials=trials, max_steps=steps)
    if work == "tree":
        trainer, config = Counting, {"log": str(folder / "log"), "seconds": STEP_SECONDS}
        tuner = dt.algos.Grid(hippo_144(), max_steps=steps)
    elif work == "asha":
        trainer, config = Counting, {"log": str(folder / "log"), "seconds": ASHA_STEP_SECONDS}
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
    # Nothing was saved by sharing but in the tree: the first step of any trial is another state.
    if work != "tree" and study.summary()["steps_executed"] != trials * steps:
        raise RuntimeError(f"every trial must be trained, got {study.summary()}")
    return sum(trial.state.value == "COMPLETE" for trial in study.trials)


# ---------------------------------------------------------------------- other tuners


def _optuna(trials: int, storage: str | None) -> int:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(storage=storage, sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(lambda trial: trial.suggest_float("lr", 1e-5, 1.0, log=True), n_trials=trials)
    return len(study.trials)


def _optuna_in_memory(work: str, trials: int, steps: int, folder: Path) -> int:
    return _optuna(trials, None)


def _optuna_sqlite(work: str, trials: int, steps: int, folder: Path) -> int:
    return _optuna(trials, f"sqlite:///{folder}/optuna.db")


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
        time.sleep(ASHA_STEP_SECONDS)
        trial.report(rate * step, step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return float(rate * steps)


CONTESTANTS: dict[str, Callable[[str, int, int, Path], int]] = {
    "distributed": _distributed,
    "distributed-tree": _distributed_tree,
    "dasktune": _dasktune,
    "optuna-memory": _optuna_in_memory,
    "optuna-sqlite": _optuna_sqlite,
    "optuna-dask": _optuna_on_dask,
}

PACKAGES = {"optuna-dask": "optuna_integration"}
"""The package that a contestant imports, where its name does not begin with that."""

OTHERS = {
    "optuna-memory": "one process, nothing kept",
    "optuna-sqlite": "one process, database, no checkpoints",
}


if __name__ == "__main__":
    if CONTESTANT_OPTION in sys.argv:
        asked, scratch = sys.argv[-2:]
        order = json.loads(asked)
        contestant = CONTESTANTS[order.pop("name")]
        print(contestant(**order, folder=Path(scratch)))
    else:
        sys.exit(main("overhead", measure, parts=PARTS))
