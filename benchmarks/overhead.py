"""Overhead: 500 trials of one step that does nothing, next to plain Dask and other tuners.

Everything is on: checkpoints, the database, the progress display. Each contestant is a whole
process, from its start to its end, imports and the start of the same local cluster included.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from figures import Figure, main

TRIALS, SHORT_TRIALS = 500, 20
WORKERS = 2
ROUNDS = 5
BOUND = 2.5
CONTESTANT_OPTION = "--contestant"


def measure(short: bool) -> list[Figure]:
    """Run dasktune and plain distributed in turns, then once every other that is installed."""
    trials = SHORT_TRIALS if short else TRIALS
    rounds = [
        (_seconds("distributed", trials), _seconds("dasktune", trials))
        for _ in range(1 if short else ROUNDS)
    ]
    ratios = [ours / plain for plain, ours in rounds]
    plain, ours = (median(each) for each in zip(*rounds, strict=True))
    every = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    others = {name: _seconds(name, trials) for name in OTHERS if _is_installed(name)}
    return [
        Figure(
            name=f"dasktune, {trials} no-op trials, over plain distributed",
            value=median(ratios),
            unit="x",
            at_most=BOUND,
            note=f"median of {every}; {ours:.2f} s and {plain:.2f} s; {NOTES['dasktune']}",
        ),
        *(
            Figure(
                name=f"{name}, {trials} no-op trials, over plain distributed",
                value=seconds / plain,
                unit="x",
                note=f"{seconds:.2f} s, once; {NOTES[name]}",
            )
            for name, seconds in others.items()
        ),
    ]


def _is_installed(name: str) -> bool:
    return importlib.util.find_spec(name.partition("-")[0]) is not None


def _seconds(name: str, trials: int) -> float:
    """Return how long a contestant's process lives."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, CONTESTANT_OPTION, name, str(trials), folder]
        began = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - began
    if done.returncode or done.stdout.split()[-1:] != [str(trials)]:
        raise RuntimeError(f"{name} must finish {trials} trials:\n{done.stdout}\n{done.stderr}")
    return seconds


def _distributed(trials: int, folder: Path) -> int:
    """Submit functions that do nothing; the cluster is started as dasktune starts its own."""
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
        return len(client.gather(client.map(_do_nothing, range(trials), pure=False)))


def _do_nothing(number: int) -> float:
    return 0.0


def _dasktune(trials: int, folder: Path) -> int:
    """Run a random search, whose trials have nothing in common."""
    from spaces import all_different
    from trainers import Nothing

    import dasktune as dt

    study = dt.create_study(
        Nothing, name="overhead", storage=folder, metric="value", direction="minimize"
    )
    tuner = dt.algos.Random(all_different(), trials=trials, max_steps=1)
    study.optimize(tuner, workers=WORKERS, progress=True)
    # The first step of every trial is another state: nothing was saved by sharing.
    if study.summary()["steps_executed"] != trials:
        raise RuntimeError(f"every trial must be trained, got {study.summary()}")
    return sum(trial.state.value == "COMPLETE" for trial in study.trials)


def _optuna(trials: int, storage: str | None) -> int:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(storage=storage, sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(lambda trial: trial.suggest_float("lr", 1e-5, 1.0, log=True), n_trials=trials)
    return len(study.trials)


def _optuna_in_memory(trials: int, folder: Path) -> int:
    return _optuna(trials, None)


def _optuna_sqlite(trials: int, folder: Path) -> int:
    return _optuna(trials, f"sqlite:///{folder}/optuna.db")


CONTESTANTS: dict[str, Callable[[int, Path], int]] = {
    "distributed": _distributed,
    "dasktune": _dasktune,
    "optuna-memory": _optuna_in_memory,
    "optuna-sqlite": _optuna_sqlite,
}

OTHERS = ("optuna-memory", "optuna-sqlite")

NOTES = {
    "dasktune": f"{WORKERS} worker processes, checkpoints, database, progress",
    "optuna-memory": "one process, nothing kept",
    "optuna-sqlite": "one process, database, no checkpoints",
}


if __name__ == "__main__":
    if CONTESTANT_OPTION in sys.argv:
        contestant, count, scratch = sys.argv[-3:]
        print(CONTESTANTS[contestant](int(count), Path(scratch)))
    else:
        sys.exit(main("overhead", measure))
