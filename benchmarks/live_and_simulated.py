"""How close a simulation on a recorded trace comes to the live run: Default, Bandit and POP."""

from __future__ import annotations

import logging
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from classifier import Classifier
from distributed import Client
from figures import Figure, main

import dasktune as dt
from dasktune.algos.base import Tuner
from dasktune.algos.samplers import GivenSource, Source
from dasktune.cluster.local import local_client
from dasktune.simulate import Simulation, Trace
from dasktune.space import Configuration, Space
from dasktune.study.study import Study

WORKERS, SHORT_WORKERS = (2, 4), (2,)
ERROR = 0.13
"""What HyperDrive's simulator is off by at most [Rasley et al., section 7]."""

STEP_SECONDS = 0.08
LONG, SHORT = (24, 30, 3), (6, 6, 1)
"""Trials, steps of each, and repeats."""

EVERY = 5
"""Steps between the boundaries of Bandit and POP."""

GOOD = 3
"""So many of the configurations reach the target."""

METRIC = "accuracy"
SPACE = Space(lr=dt.Float(1e-4, 0.1, log=True), batch_size=[16, 64])

Make = Callable[[Space, Source, int, int, float], Tuner]


def _random(space: Space, source: Source, trials: int, steps: int, target: float) -> Tuner:
    return dt.algos.Random(space, trials=trials, max_steps=steps, sampler=source)


def _bandit(space: Space, source: Source, trials: int, steps: int, target: float) -> Tuner:
    return dt.algos.Bandit(space, trials=trials, max_steps=steps, every=EVERY, sampler=source)


def _pop(space: Space, source: Source, trials: int, steps: int, target: float) -> Tuner:
    return dt.algos.POP(
        space,
        target=target,
        within=trials * steps * STEP_SECONDS,
        trials=trials,
        max_steps=steps,
        every=EVERY,
        bounds=(0.0, 1.0),
        sampler=source,
    )


POLICIES: dict[str, Make] = {"Default": _random, "Bandit": _bandit, "POP": _pop}


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """The seconds of a run from its first stage on, and its number of trained steps."""

    total: float
    to_target: float | None
    steps: int

    @classmethod
    def live(cls, study: Study, target: float) -> Took:
        """Return the seconds of a live run, by its workers' clocks."""
        began = min(stage.started for stage in study.stages() if stage.started)
        measured = [metric for trial in study.trials for metric in trial.metrics.values()]
        reached = [each["clock"] for each in measured if each[METRIC] >= target]
        return cls(
            total=max(each["clock"] for each in measured) - began,
            to_target=min(reached) - began if reached else None,
            steps=study.summary()["steps_executed"],
        )

    @classmethod
    def simulated(cls, found: Simulation, target: float) -> Took:
        """Return the seconds of a simulated run."""
        began = min(each.at for each in found.events)
        reached = found.time_to(target)
        return cls(
            total=max(event.at for event in found.events) - began,
            to_target=None if reached is None else reached - began,
            steps=found.steps_executed,
        )


def measure(short: bool) -> list[Figure]:
    """Run all configurations once, and every policy live and on the trace of that run."""
    logging.getLogger("dasktune").setLevel(logging.ERROR)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        bench = None
        for workers in SHORT_WORKERS if short else WORKERS:
            with local_client(workers) as client:
                bench = bench or Bench.recorded(client, Path(folder), *(SHORT if short else LONG))
                figures += bench.figures(client, workers)
    return figures


def _live(client: Client, folder: Path, tuner: Tuner) -> Study:
    study = dt.create_study(
        Classifier,
        name=folder.name,
        storage=folder,
        metric=METRIC,
        direction="maximize",
        config={"seconds": STEP_SECONDS},
        merge=False,
    )
    study.optimize(tuner, client=client, progress=False, last_line=False)
    return study


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A trace, and the configurations that it is of, for live runs of the same."""

    folder: Path
    trace: Trace
    configurations: Sequence[Configuration]
    repeats: int

    @classmethod
    def recorded(cls, client: Client, folder: Path, trials: int, steps: int, repeats: int) -> Bench:
        """Run so many configurations, and return a bench with the trace of that run."""
        rng = np.random.default_rng(0)
        configurations = [SPACE.sample(rng) for _ in range(trials)]
        tuner = _random(SPACE, GivenSource(configurations, "recorded"), trials, steps, 0.0)
        path = _live(client, folder / "recorded", tuner).trace().save(f"{folder}/t.zarr")
        return cls(
            folder=folder,
            trace=Trace.load(path),
            configurations=configurations,
            repeats=repeats,
        )

    @property
    def target(self) -> float:
        """The best accuracy of the last configuration that is good."""
        best = np.nanmax(self.trace.values[:, :, self.trace.metrics.index(METRIC)], axis=1)
        return float(np.sort(best)[-GOOD])

    def figures(self, client: Client, workers: int) -> Iterator[Figure]:
        """Yield how far simulated runs are off live ones on so many workers."""
        for name, make in POLICIES.items():
            pairs = [
                (
                    self._run_live(client, f"{name} {workers} {order}", make, order),
                    self._simulate(workers, make, order),
                )
                for order in range(self.repeats)
            ]
            yield from _compared(f"{name}, {workers} workers", pairs)

    def _run_live(self, client: Client, name: str, make: Make, order: int) -> Took:
        shuffled = np.random.default_rng(order).permutation(len(self.configurations))
        source = GivenSource([self.configurations[at] for at in shuffled], "shuffled")
        study = _live(client, self.folder / name, self._tuner(make, SPACE, source))
        took = Took.live(study, self.target)
        study.close()
        return took

    def _simulate(self, workers: int, make: Make, order: int) -> Took:
        space = self.trace.space(order=order)
        tuner = self._tuner(make, space, GivenSource(space.configurations(), "shuffled"))
        return Took.simulated(dt.simulate(tuner, self.trace, workers=workers), self.target)

    def _tuner(self, make: Make, space: Space, source: Source) -> Tuner:
        return make(space, source, len(self.configurations), self.trace.steps, self.target)


def _compared(name: str, pairs: Sequence[tuple[Took, Took]]) -> Iterator[Figure]:
    """Yield how far the means over the repeats are apart, and each repeat's difference."""
    lives, others = zip(*pairs, strict=True)
    yield from _errors(f"{name}: total time", [(pair.total, other.total) for pair, other in pairs])
    reached = [(a.to_target, b.to_target) for a, b in pairs if a.to_target and b.to_target]
    if reached:
        yield from _errors(f"{name}: time to target", reached)
    steps = sum(each.steps for each in others) / sum(live.steps for live in lives)
    yield Figure(
        name=f"{name}: steps, simulated over live",
        value=steps,
        unit="x",
        equals=1.0 if name.startswith("Default") else None,
    )


def _errors(name: str, pairs: Sequence[tuple[float, float]]) -> Iterator[Figure]:
    live, simulated = (statistics.fmean(times) for times in zip(*pairs, strict=True))
    each = [other / pair - 1 for pair, other in pairs]
    yield Figure(
        name=f"{name}, means off by",
        value=abs(simulated / live - 1),
        at_most=ERROR,
        note=f"{live:.2f} s live, {simulated:.2f} s simulated",
    )
    yield Figure(
        name=f"{name}, the worst run off by",
        value=max(map(abs, each)),
        note=", ".join(f"{error:+.1%}" for error in each),
    )


if __name__ == "__main__":
    sys.exit(main("live_and_simulated", measure))
