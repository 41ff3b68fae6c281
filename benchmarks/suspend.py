"""How long it takes until a suspended trial is durable, and how large it is, on real workers."""

from __future__ import annotations

import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from figures import Figure, main
from trainers import Heavy, logged

import dasktune as dt
from dasktune.algos.base import Tuner
from dasktune.cluster.local import local_client
from dasktune.study.study import Study

WORKERS = 2
NBYTES = 360_000
"""Of a state: the mean of HyperDrive's supervised learning is 358 KB."""

STEP_SECONDS = 0.02
TRIALS, SHORT_TRIALS = 60, 17
MAX_STEPS = 24
MEAN_MS, P95_MS = 158.0, 219.0
"""What HyperDrive measured [Rasley et al., section 6.2]."""


def tuners(trials: int) -> Mapping[str, Tuner]:
    """Return tuners that suspend: at rungs, and at each boundary for others to have their turn."""
    space = dt.Space(lr=dt.Float(0.1, 1.0))
    return {
        "ASHA": dt.algos.ASHA(space, trials=trials, min_steps=3, max_steps=MAX_STEPS, eta=2),
        "POP": dt.algos.POP(
            space, target=float(MAX_STEPS), trials=trials // 2, max_steps=MAX_STEPS, least=0.0
        ),
    }


def measure(short: bool) -> list[Figure]:
    """Run studies whose trials are suspended and resumed; tell what that took."""
    logging.getLogger("dasktune").setLevel(logging.ERROR)
    figures = []
    with local_client(WORKERS) as client:
        for name, tuner in tuners(SHORT_TRIALS if short else TRIALS).items():
            with tempfile.TemporaryDirectory() as folder:
                log = Path(folder) / "steps"
                study = dt.create_study(
                    Heavy,
                    name=name,
                    storage=folder,
                    metric="value",
                    direction="maximize",
                    config={"nbytes": NBYTES, "seconds": STEP_SECONDS, "log": str(log)},
                )
                study.optimize(tuner, client=client, progress=False, last_line=False)
                figures += _figures(name, study, len(logged(log)))
                study.close()
    return figures


def _figures(name: str, study: Study, trained: int) -> list[Figure]:
    summary = study.summary()
    suspensions = summary["suspensions"]
    if suspensions is None:
        raise RuntimeError(f"{name} must have suspended its trials")
    parts = Counter(number for stage in study.stages() for number in stage.trials)
    resumed = sum(count > 1 for count in parts.values())
    seconds, nbytes = suspensions["seconds"], suspensions["nbytes"]
    spread = f"standard deviation {1e3 * seconds['deviation']:.1f} ms"
    sizes = f"standard deviation {nbytes['deviation'] / 1e3:.1f} KB"
    return [
        Figure(
            name=f"suspensions, {name}",
            value=suspensions["count"],
            note=f"{resumed} of {len(study.trials)} trials were resumed",
        ),
        Figure(
            name=f"suspend latency, mean, {name}",
            value=1e3 * seconds["mean"],
            unit="ms",
            at_most=MEAN_MS,
            note=spread,
        ),
        Figure(
            name=f"suspend latency, 95th percentile, {name}",
            value=1e3 * seconds["p95"],
            unit="ms",
            at_most=P95_MS,
        ),
        Figure(name=f"suspend latency, largest, {name}", value=1e3 * seconds["most"], unit="ms"),
        Figure(name=f"snapshot, mean, {name}", value=nbytes["mean"] / 1e3, unit="KB", note=sizes),
        Figure(name=f"snapshot, 95th percentile, {name}", value=nbytes["p95"] / 1e3, unit="KB"),
        Figure(name=f"snapshot, largest, {name}", value=nbytes["most"] / 1e3, unit="KB"),
        Figure(
            name=f"steps trained more than once, {name}",
            value=trained - summary["steps_unique"],
            equals=0,
            note="counted by the trainer",
        ),
    ]


if __name__ == "__main__":
    sys.exit(main("suspend", measure))
