"""Measures support vector machines on images: seconds and loss of random configurations.

`shadho.py` simulates with these measurements, which are kept in ``svc_times.json``. A
configuration is drawn from the space of the paper and trained one against the rest: 10 machines,
one for each digit. The seconds are those of one machine, the mean of the 10, as CPU time of one
core, so that a busy computer measures the same as an idle one.

References
----------
Kinnison et al., "SHADHO: Massively Scalable Hardware-Aware Distributed Hyperparameter
Optimization", section 5.1.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import SVC

import dasktune as dt
from dasktune.space import Branch

MEASURED = Path(__file__).with_name("svc_times.json")
KERNELS = {"linear": 24, "rbf": 16, "sigmoid": 32, "poly": 64}
"""Number of configurations that are measured, by kernel."""

IMAGES, MORE_IMAGES = 2_000, 5_000
"""Images of the training; the larger number is measured for the exponent."""

SCALED = 3
"""Configurations of each kernel that are measured with more images, too."""

JUDGED = 1_000
"""Images, of others, whose share of errors is the loss."""

MOST_ITERATIONS = 1_000
CACHE_MB = 400
SEED = 0
ARGUMENTS = {"C": "C", "gamma": "gamma", "r": "coef0", "degree": "degree"}
"""Arguments of scikit-learn by our name of the hyper-parameter."""


def space() -> dt.Space:
    """Return the space of the paper: the four kernels with their hyper-parameters."""
    c, gamma = dt.Float(0.001, 15.0, log=True), dt.Float(0.001, 1000.0)
    r, degree = dt.Float(-1000.0, 1000.0), dt.Int(1, 15)
    return dt.Space(
        kernel=[
            Branch("linear", dt.Space(C=c)),
            Branch("rbf", dt.Space(C=c, gamma=gamma)),
            Branch("sigmoid", dt.Space(C=c, gamma=gamma, r=r)),
            Branch("poly", dt.Space(C=c, gamma=gamma, r=r, degree=degree)),
        ]
    )


def drawn() -> Iterator[dict[str, Any]]:
    """Yield as many configurations of each kernel as `KERNELS` says, the kernels mixed."""
    left = dict(KERNELS)
    tuner = dt.algos.Random(
        space(),
        trials=4 * sum(left.values()),
        max_steps=1,
        seed=SEED,
        sampler=dt.Forest(priority=False, complexity=False),
    )
    for configuration in tuner.source.known(tuner.trials) or _drawn_by(tuner):
        values = {name: sequence(0) for name, sequence in configuration.sequences.items()}
        if left[values["kernel"]]:
            left[values["kernel"]] -= 1
            yield values


def _drawn_by(tuner: Any) -> Iterator[Any]:
    while tuner.left:
        yield tuner.draw()


def measure(x: np.ndarray, y: np.ndarray, values: Mapping[str, Any], images: int) -> dict[str, Any]:
    """Return the seconds of a machine with these values, and the loss of all ten together.

    The loss is None if the training fails.
    """
    arguments = {ARGUMENTS[name]: value for name, value in values.items() if name in ARGUMENTS}
    machine = SVC(
        kernel=values["kernel"], max_iter=MOST_ITERATIONS, cache_size=CACHE_MB, **arguments
    )
    ten = OneVsRestClassifier(machine)
    begun = time.process_time()
    try:
        ten.fit(x[:images], y[:images])
    except ValueError:  # the first of the ten machines has infinite coefficients
        return {"seconds": round(time.process_time() - begun, 5), "loss": None}
    seconds = (time.process_time() - begun) / len(ten.estimators_)
    judged = JUDGED if images == IMAGES else 1
    loss = 1.0 - ten.score(x[-judged:], y[-judged:])
    return {"seconds": round(seconds, 5), "loss": round(loss, 4)}


def measured(path: Path) -> dict[str, Any]:
    """Return the measurements of all configurations, and where they come from."""
    with np.load(path) as data:
        x, y = data["x"].reshape(len(data["x"]), -1) / 255.0, data["y"]
    rows: list[dict[str, Any]] = []
    for values in drawn():
        row = {**values, **measure(x, y, values, IMAGES)}
        scaled = sum(each["kernel"] == row["kernel"] and "more_seconds" in each for each in rows)
        if scaled < SCALED and row["loss"] is not None:
            more = measure(x, y, values, MORE_IMAGES)
            row |= {} if more["loss"] is None else {"more_seconds": more["seconds"]}
        rows.append(row)
        print(row, flush=True)
    origin = {
        "data": path.name,
        "digest": blake2b(path.read_bytes(), digest_size=8).hexdigest(),
        "images": [IMAGES, MORE_IMAGES],
        "judged": JUDGED,
        "most_iterations": MOST_ITERATIONS,
        "seed": SEED,
        "machine": platform.processor() or platform.machine(),
        "scikit-learn": sklearn.__version__,
        "clock": "CPU seconds of one of the ten machines, their mean",
    }
    return {"origin": origin, "exponents": exponents(rows), "rows": rows}


def exponents(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return by which power of the number of images the seconds grow, by kernel: the median."""
    growth = np.log(MORE_IMAGES / IMAGES)
    return {
        kernel: round(
            statistics.median(
                float(np.log(row["more_seconds"] / row["seconds"]) / growth)
                for row in rows
                if row["kernel"] == kernel and "more_seconds" in row
            ),
            3,
        )
        for kernel in KERNELS
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="svc_times.py")
    parser.add_argument("--data", type=Path, required=True, help="mnist_50k.npz, images of digits")
    parser.add_argument("--json", type=Path, default=MEASURED, help="where to write them")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # that the iterations end early is meant
    document = measured(options.data)
    lines = ",\n".join(json.dumps(row) for row in document.pop("rows"))
    head = json.dumps(document, indent=1)[:-2]
    options.json.write_text(f'{head},\n "rows": [\n{lines}\n]}}\n')
    sys.exit(0)
