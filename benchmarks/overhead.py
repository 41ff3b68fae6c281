"""Overhead: whole processes of dasktune next to bare Dask, in interleaved pairs.

Everything is on in dasktune: checkpoints, the database, the progress display. Bare Dask has one
`client.submit` and one `log_event` a trial and makes nothing durable: all trials are submitted at
once, or a few at a time. Each contestant is a whole process, from its start to its end, imports and
the start of a local cluster included: bare Dask's has a dashboard, as Dask starts it.

The timeline says what a run of short trials is made of: what the threads of the driver, which are
the scheduler's, too, and the workers compute and wait for, and how often they call each other.

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
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import digits_cnn
from figures import Figure, main
from spaces import STEPS
from tree_by_hand import Values, run_tree

WORKERS = 2
IN_FLIGHT = 4
"""Trials that bare Dask has under way at a time, if it has not all at once."""

ROUNDS, SHORT_ROUNDS = 5, 1
CONTESTANT_OPTION = "--contestant"
STEP_SECONDS, SHORT_SECONDS = 0.005, 0.002
ETA = 4
"""Of ASHA, whose rungs go from 1 step to all."""

PROBE_SECONDS = 0.01
COUNTS = {
    "messages": 1.05,
    "graphs": None,
    "turns of the loop": None,
    "transactions": 0.07,
    "stored states": 0.05,
}
"""Of a timeline, with their bounds per trial."""

LEAST_SHARE = 0.01
"""Share of the wall time from which on a thread has figures of its own."""

SET_CHILD_SUBREAPER = 36
"""Of `prctl` of Linux."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work of dasktune and of baselines, with the largest ratios of their wall times."""

    name: str
    trials: int
    steps: int
    most: Mapping[str, float]
    """By baseline."""


BASELINES = {
    "at-once": "bare Dask, all at once",
    "in-flight": f"bare Dask, {IN_FLIGHT} in flight",
    "optuna-dask": "Optuna on Dask",
    "tree": "a tree by hand on bare Dask",
    "unchecked": "dasktune without the check",
    "optuna": "Optuna in one process",
}
"""Contestants next to which dasktune runs, in words."""

BARE = {"at-once": 1.5, "in-flight": 1.4}
WORKS = {
    "few": Work(name="500 no-op trials", trials=500, steps=1, most=BARE),
    "many": Work(name="2000 no-op trials", trials=2000, steps=1, most=BARE),
    "reports": Work(name="16 trials of many reports", trials=16, steps=1000, most={"at-once": 1.4}),
    "asha": Work(
        name="ASHA of 256 trials of 5 ms a step", trials=256, steps=64, most={"optuna-dask": 0.5}
    ),
    "start": Work(name="start to first step", trials=1, steps=1, most={"at-once": 1.3}),
    "cnn": Work(
        name=f"{digits_cnn.TRIALS} schedules of a small CNN, a first study",
        trials=digits_cnn.TRIALS,
        steps=digits_cnn.EPOCHS,
        most={"tree": 0.9, "unchecked": 1.2},
    ),
    "script": Work(
        name="an Optuna script of 20 small networks", trials=20, steps=12, most={"optuna": 1.1}
    ),
    "schedules": Work(
        name="144 schedules of 120 steps of 2 ms", trials=144, steps=STEPS, most={"tree": 1.0}
    ),
    "timeline": Work(name="timeline of 500 no-op trials", trials=500, steps=1, most={}),
}
SHORT_WORKS = ("start", "timeline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The seconds that a process took, and its output."""

    wall: float
    cpu: float
    text: str


def measure(short: bool, parts: Sequence[str] = tuple(WORKS)) -> list[Figure]:
    """Run dasktune and the baselines of each work in turns."""
    rounds = SHORT_ROUNDS if short else ROUNDS
    figures: list[Figure] = []
    for name in parts:
        if name == "timeline":
            figures += _timeline_figures(rounds)
        elif (name in SHORT_WORKS or not short) and all(map(_is_installed, WORKS[name].most)):
            figures += _compared(name, rounds)
    return figures


def _compared(name: str, rounds: int) -> Iterator[Figure]:
    """Yield the ratios of wall and CPU time; which one is first changes from round to round."""
    work = WORKS[name]
    contestants = (*work.most, "dasktune")
    taken: dict[str, list[Times]] = {contestant: [] for contestant in contestants}
    for number in range(rounds):
        for contestant in contestants if number % 2 == 0 else reversed(contestants):
            taken[contestant].append(_run(contestant, name, work.trials, work.steps))
    for baseline, most in work.most.items():
        for kind, bound in (("wall", most), ("cpu", None)):
            plain, own = (
                [getattr(times, kind) for times in taken[each]] for each in (baseline, "dasktune")
            )
            ratios = sorted(ours / base for base, ours in zip(plain, own, strict=True))
            yield Figure(
                name=f"dasktune, {work.name}, over {BASELINES[baseline]}, {kind}",
                value=median(ratios),
                unit="x",
                at_most=bound,
                note=f"median of {rounds}, {ratios[0]:.2f} to {ratios[-1]:.2f}; "
                f"{median(own):.2f} s and {median(plain):.2f} s",
            )


def _timeline_figures(rounds: int) -> Iterator[Figure]:
    """Yield the medians of the figures of a timeline."""
    work = WORKS["timeline"]
    runs = [_run("timeline", "timeline", work.trials, work.steps).text for _ in range(rounds)]
    lines = [json.loads(text.splitlines()[-2]) for text in runs]
    for name, (_, unit, bound) in lines[0].items():
        values = sorted(line[name][0] for line in lines if name in line)
        note = f"median of {rounds}, {values[0]:.3g} to {values[-1]:.3g}"
        value = median(values)
        yield Figure(name=f"timeline, {name}", value=value, unit=unit, at_most=bound, note=note)


def _is_installed(name: str) -> bool:
    return name != "optuna-dask" or importlib.util.find_spec("optuna_integration") is not None


def _run(name: str, work: str, trials: int, steps: int) -> Times:
    """Return how long a contestant's process lives, or until its first step, and its CPU time."""
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
    return Times(wall=seconds, cpu=cpu_seconds, text=text)


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


def _distributed(in_flight: int | None, work: str, trials: int, steps: int, folder: Path) -> int:
    """Submit a function for each trial, a few at a time or all at once."""
    from dask.distributed import as_completed

    heard: list[object] = []
    with _bare_cluster(folder) as client:
        client.subscribe_topic("trials", heard.append)

        def submit(number: int) -> Any:
            return client.submit(_trial, work, number, steps, str(folder), pure=False)

        numbers = iter(range(trials))
        pending = as_completed([submit(number) for number in islice(numbers, in_flight)])
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
    if work == "cnn":
        return digits_cnn.run_study(WORKERS, folder, check=True)
    if work == "script":
        from digits_script import run_with_dasktune

        return run_with_dasktune(WORKERS, folder)
    from spaces import all_different, hippo_144
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
    elif work == "schedules":
        trainer, config = Counting, {"log": str(folder / "log"), "seconds": SHORT_SECONDS}
        tuner = dt.algos.Grid(hippo_144(), max_steps=steps)
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
    if work != "schedules" and study.summary()["steps_executed"] != trials * steps:
        raise RuntimeError(f"every trial must be trained, got {study.summary()}")
    return sum(trial.state.value == "COMPLETE" for trial in study.trials)


# -------------------------------------------------------------------------- timeline


def _timeline(work: str, trials: int, steps: int, folder: Path) -> int:
    """Run a random search; print what happened from the end of its first trial to the last."""
    from spaces import all_different
    from trainers import Nothing

    import dasktune as dt
    from dasktune._driver import connection
    from dasktune._driver.attempts import Attempts
    from dasktune.storage.database.database import Database

    counts: Counter[str] = Counter()

    def counted(owner: Any, method: str, name: str) -> None:
        plain = getattr(owner, method)

        def call(*arguments: Any, **options: Any) -> Any:
            counts[name] += 1
            return plain(*arguments, **options)

        setattr(owner, method, call)

    counted(connection, "from_wire", "messages")
    counted(connection.Client, "submit", "graphs")
    counted(Attempts, "check", "turns of the loop")
    counted(Database, "write", "transactions")

    class Marks(dt.Callback):
        """Keeps the readings at the end of the first trial and of the last one."""

        ended = 0

        def on_trial_end(self, study: Any, trial: Any) -> None:
            self.ended += 1
            if self.ended == 1:
                counts.clear()
                self.first = _readings(workers)
            elif self.ended == trials:
                self.last, self.counts = _readings(workers), dict(counts)

    marks = Marks()
    with _bare_cluster(folder) as client:
        workers = sorted(client.run(os.getpid).values())
        study = dt.create_study(
            Nothing,
            name="timeline",
            storage=folder / "store",
            metric="value",
            direction="minimize",
        )
        tuner = dt.algos.Random(all_different(), trials=trials, max_steps=steps)
        with _gil_probe() as delays:
            study.optimize(tuner, client=client, progress=True, callbacks=[marks])
    marks.counts["stored states"] = sum(1 for _ in (folder / "store").rglob("commit"))
    print(json.dumps(_spans(marks.first, marks.last, trials, marks.counts, delays)))
    return marks.ended


def _readings(workers: Iterable[int]) -> dict[str, tuple[float, float]]:
    """Return seconds of CPU time and of waiting for a core so far, by thread or process."""
    names = {each.native_id: each.name for each in threading.enumerate()}
    names[os.getpid()] = "loop of decisions"
    readings = {"clock": (time.monotonic(), 0.0)}
    groups = {os.getpid(): "driver", **dict.fromkeys(workers, "workers")}
    for process, group in groups.items():
        for task in Path(f"/proc/{process}/task").iterdir():
            with suppress(OSError):  # the thread has ended
                used, waited, _ = map(int, (task / "schedstat").read_text().split())
                thread = names.get(int(task.name), "others").rsplit("_", 1)[0]
                name = f"driver, {thread}" if group == "driver" else group
                before = readings.get(name, (0.0, 0.0))
                readings[name] = before[0] + used / 1e9, before[1] + waited / 1e9
    return readings


@contextmanager
def _gil_probe() -> Iterator[list[float]]:
    """Give the delays, in seconds, with which a thread that sleeps goes on: most wait for the GIL.

    They hold what the thread waits for a core, too.
    """
    delays: list[float] = []
    is_over = threading.Event()

    def probe() -> None:
        while not is_over.is_set():
            began = time.monotonic()
            time.sleep(PROBE_SECONDS)
            delays.append(time.monotonic() - began - PROBE_SECONDS)

    thread = threading.Thread(target=probe, name="probe")
    thread.start()
    try:
        yield delays
    finally:
        is_over.set()
        thread.join()


def _spans(
    first: Mapping[str, tuple[float, float]],
    last: Mapping[str, tuple[float, float]],
    trials: int,
    counts: Mapping[str, int],
    delays: Sequence[float],
) -> dict[str, tuple[float, str, float | None]]:
    """Return (value, unit, bound) by name: between the first trial's end and the last one's."""
    wall = last["clock"][0] - first["clock"][0]
    figures: dict[str, tuple[float, str, float | None]] = {
        "wall time per trial": (wall / trials * 1e3, "ms", None)
    }
    driver = 0.0
    for name in sorted(last.keys() - {"clock"}):
        before = first.get(name, (0.0, 0.0))
        used, waited = last[name][0] - before[0], last[name][1] - before[1]
        driver += used if name.startswith("driver") else 0.0
        if used < LEAST_SHARE * wall:
            continue
        figures[f"{name}: CPU per trial"] = used / trials * 1e3, "ms", None
        figures[f"{name}: share of the wall time"] = used / wall * 100, "%", None
        figures[f"{name}: waits for a core"] = waited / wall * 100, "%", None
    figures["all of the driver: CPU per trial"] = driver / trials * 1e3, "ms", None
    figures["all of the driver: share of its GIL"] = driver / wall * 100, "%", None
    figures["delay of a thread that wakes"] = median(delays) * 1e3, "ms", None
    for name, most in COUNTS.items():
        figures[f"{name} per trial"] = counts.get(name, 0) / trials, "", most
    return figures


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


# ------------------------------------------------------------------- trees, and a script


def _tree(work: str, trials: int, steps: int, folder: Path) -> int:
    """Train schedules by a tree of tasks: those of the CNN, or those that wait."""
    from spaces import hippo_144

    with _bare_cluster(folder) as client:
        if work == "cnn":
            return run_tree(client, digits_cnn.train_stage, digits_cnn.schedules())
        waiting = [
            [{name: each(t) for name, each in chosen.sequences.items()} for t in range(steps)]
            for chosen in hippo_144().configurations()
        ]
        return run_tree(client, _wait_for_steps, waiting)


def _wait_for_steps(state: float | None, values: Sequence[Values]) -> float:
    """Train as `Counting` does, in a worker."""
    total = state or 0.0
    for each in values:
        time.sleep(SHORT_SECONDS)
        total += each["lr"]
    return total


def _unchecked(work: str, trials: int, steps: int, folder: Path) -> int:
    """Train the CNN with dasktune, which takes the trainer at its word."""
    return digits_cnn.run_study(WORKERS, folder, check=False)


def _optuna(work: str, trials: int, steps: int, folder: Path) -> int:
    """Run the script of a user of Optuna."""
    from digits_script import run_with_optuna

    return run_with_optuna(folder)


CONTESTANTS: dict[str, Callable[[str, int, int, Path], int]] = {
    "at-once": partial(_distributed, None),
    "in-flight": partial(_distributed, IN_FLIGHT),
    "timeline": _timeline,
    "dasktune": _dasktune,
    "optuna-dask": _optuna_on_dask,
    "tree": _tree,
    "unchecked": _unchecked,
    "optuna": _optuna,
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
