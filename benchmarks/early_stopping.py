"""Early stopping and merging: what a stage tree saves of the steps that SHA and ASHA ask for."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from figures import Figure, main
from spaces import STEPS, hippo_448

import dasktune as dt
from dasktune.algos.base import Tuner
from dasktune.engine.trials import Trial
from dasktune.simulate import Simulation
from dasktune.types import Decision, Extend, Finish, Register, Report, Value

MIN_STEPS, ETA = 15, 4
WORKERS = 40
"""As many GPUs as Hippo was measured on."""

PAPER_RATE = 2.447
"""Of the space of Hippo's ResNet56 studies."""

PAPER = {
    "SHA": "Hippo: explored 4.23, saved 4.84 in GPU hours",
    "ASHA": "Hippo: saved 2.70 in GPU hours, each with decisions of its own",
}


def error(values: Mapping[str, Value], step: int) -> float:
    """Return the validation error of a made-up network.

    It falls with the steps, and lies higher by the noise of large steps: learning rate over
    batch size. The optimizer matters more than the rest, then how momentum begins, then
    weight decay. So the best of a rung agree in what no stage can be shared across, and
    differ in sequences that begin alike: what makes them good is what they share.
    """
    by_optimizer = {"adam": 0.02, "sgd": 0.035, "sgd with momentum": 0.0}
    momentum, rate, size = values.get("momentum", 0.9), values["lr"], values["batch_size"]
    return (
        0.06
        + by_optimizer[str(values["optimizer"])]
        + 0.04 * (0.9 - _number(momentum))
        + (0.006 if values["weight_decay"] == 1e-4 else 0.0)
        + 32.0 * _number(rate) / _number(size)
        + 0.6 * math.exp(-step / 20)
    )


def _number(value: Value) -> float:
    if not isinstance(value, int | float):
        raise TypeError(f"a number is needed, got {value!r}")
    return float(value)


class Again(Tuner):
    """Trains the trials of an earlier run as far as they were trained, whatever comes out.

    Parameters
    ----------
    trials
        Of the earlier run.
    """

    max_steps = STEPS

    def __init__(self, trials: Sequence[Trial]) -> None:
        self._trials = trials
        self._open: set[int] | None = None

    def ask(self, capacity: int) -> list[Decision]:
        """Return all trials the first time."""
        if self._open is not None:
            return []
        trained = [trial for trial in self._trials if trial.steps]
        self._open = set(range(len(trained)))
        registers = [
            Register(trial=number, sequences=trial.sequences, max_steps=STEPS)
            for number, trial in enumerate(trained)
        ]
        extends = [Extend(trial=number, until=trial.steps) for number, trial in enumerate(trained)]
        return [*registers, *extends]

    def tell(self, report: Report) -> list[Decision]:
        """Return `Finish` after the last."""
        return self.tell_failure(report.trial)

    def tell_failure(self, trial: int) -> list[Decision]:
        """Return `Finish` after the last."""
        still = self._open or set()
        still.discard(trial)
        return [] if still else [Finish()]

    def identity(self) -> dict[str, object]:
        """Return the tuner's identity."""
        return {"tuner": "Again", "steps": [trial.steps for trial in self._trials]}


def measure(short: bool) -> list[Figure]:
    """Simulate both tuners with merging and, with the same decisions, without; it is short."""
    space = hippo_448()
    rate = dt.preview(space, max_steps=STEPS, workers=WORKERS).merge_rate
    return [
        Figure(
            name="merge rate p of the space",
            value=rate,
            unit="x",
            note=f"{space.size} trials of {STEPS} steps; Hippo's has {PAPER_RATE}",
        ),
        *_saved("SHA", lambda: dt.algos.SHA(space, **_arguments(space))),
        *_saved("ASHA", lambda: dt.algos.ASHA(space, brackets=[0], **_arguments(space))),
    ]


def _arguments(space: dt.Space) -> dict[str, Any]:
    return {
        "trials": space.size,
        "max_steps": STEPS,
        "min_steps": MIN_STEPS,
        "eta": ETA,
        "sampler": "grid",
    }


def _saved(name: str, make: Callable[[], Tuner]) -> list[Figure]:
    merged, alone = _simulate(make()), _simulate(make(), merge=False)
    again = _simulate(Again(merged.trials), merge=False)
    asked = sum(trial.steps for trial in merged.trials)
    unique = unique_steps(merged.trials)
    differ = sum(
        each.steps != other.steps for each, other in zip(merged.trials, alone.trials, strict=True)
    )
    rungs = ", ".join(
        f"{sum(trial.steps >= step for trial in merged.trials)} to {step}"
        for step in sorted({trial.steps for trial in merged.trials})
    )
    return [
        Figure(
            name=f"{name}: steps trained without merging over with it, the same decisions",
            value=again.steps_executed / merged.steps_executed,
            unit="x",
            equals=asked / unique,
            note=f"{again.steps_executed:,} and {merged.steps_executed:,}; the bound is the "
            f"merge rate of what was explored ({rungs}), counted naively; {PAPER[name]}",
        ),
        Figure(
            name=f"{name}: steps trained without merging over with it, decisions of its own",
            value=alone.steps_executed / merged.steps_executed,
            unit="x",
            # What SHA decides does not depend on who arrives first.
            equals=asked / unique if name == "SHA" else None,
            note=f"{alone.steps_executed:,} and {merged.steps_executed:,}; {differ} trials end "
            f"elsewhere without merging",
        ),
        Figure(
            name=f"{name}: time without merging over with it, {WORKERS} workers",
            value=again.seconds / merged.seconds,
            unit="x",
            note=f"{again.seconds:.0f} and {merged.seconds:.0f} steps' time, the same trials; "
            f"{alone.seconds:.0f} with decisions of its own",
        ),
    ]


def _simulate(tuner: Tuner, *, merge: bool = True) -> Simulation:
    return dt.simulate(tuner, error, workers=WORKERS, report_every=MIN_STEPS, merge=merge)


def unique_steps(trials: Sequence[Trial]) -> int:
    """Count the different beginnings of what was trained, step by step."""
    nodes: dict[tuple[object, ...], int] = {}
    for trial in trials:
        node = 0
        for step in range(trial.steps):
            values = (
                (name, type(value), value)
                for name, item in sorted(trial.sequences.items())
                for value in [item(step)]
            )
            node = nodes.setdefault((node, *values), len(nodes) + 1)
    return len(nodes)


if __name__ == "__main__":
    sys.exit(main("early_stopping", measure))
