"""The ways through the code: how many files a configuration and a report pass in the driver.

One small study is traced (ASHA, 8 trials, a cluster in this process). Every call of a function of
dasktune in the driver's thread counts, logging and metering that happen meanwhile included.
"""

from __future__ import annotations

import itertools
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

from figures import Figure, main
from threads import client_of_threads
from trainers import Nothing

import dasktune as dt

PACKAGE = str(Path(dt.__file__).parent) + "/"
Call = tuple[str, str]
"""File below the package, and function."""

CALLED = re.compile(r"_study/optimize.py optimize")
DRAWN = re.compile(r"algos/sampled.py draw")
SUBMITTED = re.compile(r"_driver/connection.py submit")
RECEIVED = re.compile(r"_driver/attempts.py receive")
DECIDED = re.compile(r"algos/asha.py (told|on_report)")


def measure(short: bool) -> list[Figure]:
    """Trace one study and count the files on both ways."""
    calls = _trace(4 if short else 8)
    configuration = next(_windows(calls, DRAWN, SUBMITTED))
    beginning = next(_windows(calls, CALLED, SUBMITTED))
    reports = list(_windows(calls, RECEIVED, DECIDED))
    return [
        Figure(
            name="files from the tuner's draw to the submission",
            value=len(_files(configuration)),
            unit="files",
            at_most=35,
            note=", ".join(_files(configuration)),
        ),
        Figure(
            name="files from the worker's message to the tuner's decision",
            value=median(len(_files(window)) for window in reports),
            unit="files",
            at_most=12,
            note=", ".join(_files(reports[-1])),
        ),
        Figure(
            name="files from `optimize` to the first submission",
            value=len(_files(beginning)),
            unit="files",
            at_most=80,
        ),
        Figure(
            name="moves between files from the message to the decision",
            value=median(_moves(window) for window in reports),
            unit="moves",
        ),
    ]


def _trace(trials: int) -> list[Call]:
    """Return the calls of the driver's thread in one study."""
    calls: list[Call] = []

    def note(frame: FrameType, kind: str, _: Any) -> None:
        if kind == "call" and (name := frame.f_code.co_filename).startswith(PACKAGE):
            calls.append((name.removeprefix(PACKAGE), frame.f_code.co_name))

    space = dt.Space(lr=dt.Float(0.001, 1.0, log=True))
    with (
        tempfile.TemporaryDirectory() as folder,
        client_of_threads(2) as client,
    ):
        study = dt.create_study(
            Nothing,
            name="ways",
            storage=Path(folder) / "store",
            metric="value",
            direction="minimize",
        )
        sys.setprofile(note)
        try:
            study.optimize(dt.algos.ASHA(space, trials=trials, max_steps=8), client=client)
        finally:
            sys.setprofile(None)
        study.close()
    return calls


def _windows(
    calls: list[Call], begin: re.Pattern[str], end: re.Pattern[str]
) -> Iterator[list[Call]]:
    """Yield the calls from each last `begin` before an `end` up to that `end`."""
    start: int | None = None
    for index, call in enumerate(calls):
        name = " ".join(call)
        if begin.fullmatch(name):
            start = index
        elif end.fullmatch(name) and start is not None:
            yield calls[start : index + 1]
            start = None


def _files(calls: list[Call]) -> list[str]:
    return sorted({file for file, _ in calls})


def _moves(calls: list[Call]) -> int:
    files = [file for file, _ in calls]
    return sum(a != b for a, b in itertools.pairwise(files))


if __name__ == "__main__":
    sys.exit(main("ways", measure))
