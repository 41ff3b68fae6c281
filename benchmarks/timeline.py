"""Timeline: the share of slots that are idle while a stage is ready, in a run that really trains.

The CNN of `examples/digits.py` is trained by 24 schedules of 12 epochs on two worker processes,
checkpoints and database on. The timeline is that of the study: when each stage began and ended, the
load of its state included. A stage becomes ready when the stage before it ends, and one at the root
when the first stage begins. At each moment, the slots that are idle in vain are the smaller of two
numbers: idle slots, and ready stages. The rest of the idle time has no work: a stage tree is narrow
at its root.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from figures import Figure, main

import dasktune as dt
from dasktune.results.trial_paths import keys_of
from dasktune.sequences import Constant, MultiStep, Piecewise, Warmup

EXAMPLES = Path(__file__).parents[1] / "examples"
WORKERS, EPOCHS, ROUNDS = 2, 12, 5
IDLE = 0.02
REQUESTED, UNIQUE = 288, 112
"""Epochs that the schedules ask for, and those that differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stage in time, in seconds.

    Parameters
    ----------
    ready, began, ended
        When it could begin, when it did, and when it ended.
    """

    ready: float
    began: float
    ended: float


def space() -> dt.Space:
    """Return four learning rates, three batch sizes and two momenta, most of which begin alike."""
    return dt.Space(
        lr=[
            Constant(0.05),
            MultiStep(0.05, milestones=[4], gamma=0.2),
            MultiStep(0.05, milestones=[8], gamma=0.2),
            Warmup(3, 0.05) >> Constant(0.05),
        ],
        batch_size=[
            64,
            Piecewise([64, 128], boundaries=[4]),
            Piecewise([64, 256], boundaries=[10]),
        ],
        momentum=[0.9, Piecewise([0.9, 0.95], boundaries=[8])],
    )


def measure(short: bool) -> list[Figure]:
    """Train the schedules a few times; return the shares of idle time."""
    runs = [_run(EPOCHS) for _ in range(1 if short else ROUNDS)]
    idle, in_vain, seconds = zip(
        *((*idle_shares(spans), _seconds(spans)) for spans in runs), strict=True
    )
    title = f"digits CNN, 24 schedules of {EPOCHS} epochs: idle share of {WORKERS} slots"
    return [
        Figure(
            name=f"{title} while a stage is ready",
            value=statistics.median(in_vain),
            at_most=IDLE,
            note=f"median of {len(runs)}, {min(in_vain):.4f} to {max(in_vain):.4f}; "
            f"{len(runs[0])} stages; {statistics.median(seconds):.1f} s from the first begin to "
            "the last end",
        ),
        Figure(
            name=f"{title} in all",
            value=statistics.median(idle),
            note=f"{min(idle):.3f} to {max(idle):.3f}; where the tree is narrow there is no work",
        ),
    ]


def idle_shares(spans: Sequence[Span]) -> tuple[float, float]:
    """Return the share of slot time that is idle, and that which is idle while a stage is ready."""
    moments = sorted({moment for span in spans for moment in (span.ready, span.began, span.ended)})
    idle_seconds = in_vain = 0.0
    for now, following in pairwise(moments):
        busy = sum(span.began <= now < span.ended for span in spans)
        ready = sum(span.ready <= now < span.began for span in spans)
        idle = max(0, WORKERS - busy)
        idle_seconds += idle * (following - now)
        in_vain += min(idle, ready) * (following - now)
    slot_seconds = WORKERS * _seconds(spans)
    return idle_seconds / slot_seconds, in_vain / slot_seconds


def _seconds(spans: Sequence[Span]) -> float:
    return max(span.ended for span in spans) - min(span.began for span in spans)


def _run(epochs: int) -> list[Span]:
    """Train all schedules on a cluster of their own; return the stages in time."""
    sys.path.insert(0, str(EXAMPLES))
    from digits import DigitsTrainer

    with tempfile.TemporaryDirectory() as folder:
        study = dt.create_study(
            DigitsTrainer,
            name="timeline",
            storage=Path(folder) / "store",
            metric="accuracy",
            direction="maximize",
        )
        tuner = dt.algos.Grid(space(), max_steps=epochs)
        study.optimize(tuner, workers=WORKERS, progress=False, check=False)
        summary, spans = study.summary(), _spans(study)
        study.close()
    if (summary["steps_requested"], summary["steps_executed"]) != (REQUESTED, UNIQUE):
        raise RuntimeError(f"{UNIQUE} of {REQUESTED} epochs must be trained, got {summary}")
    return spans


def _spans(study: dt.Study) -> list[Span]:
    """Return the stages of a study in time."""
    stages = [stage for stage in study.stages() if stage.started and stage.ended]
    first = min(stage.started for stage in stages)
    ended = {stage.key: stage.ended for stage in stages}
    spans = []
    for stage in stages:
        begin = next(keys_of(study.plan, stage.trials[0], [stage.start]), None)  # None at a root
        before = first if begin is None else ended[begin[1]]
        ready = min(before, stage.started)  # the clocks of two processes differ a little
        spans.append(Span(ready=ready, began=stage.started, ended=stage.ended))
    return spans


if __name__ == "__main__":
    sys.exit(main("timeline", measure))
