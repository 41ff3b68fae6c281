"""Seeds: what came of one, the shortest way to the same, and many of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context

from dasktune.errors import DasktuneError
from tests.torture.books import ViolationError
from tests.torture.parts import PARTS, Parts
from tests.torture.run import Torture
from tests.torture.scenario import Scenario

QUIET = (
    "_driver.attempts",
    "_driver.recorder",
    "_driver.leases",
    "_driver.look_ups",
    "_driver.shared_stages",
    "_driver.retention.evict",
    "storage.database.kept_writes",
)
"""Parts that log injected faults."""

CHUNK = 25
"""Seeds that a process is given at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The outcome of one seed.

    Attributes
    ----------
    scenario
        What was run.
    problem
        What did not hold; None if all did.
    events
        How much happened.
    faults
        What went wrong, in order.
    story
        What happened last, in words.
    """

    scenario: Scenario
    problem: str | None
    events: int
    faults: tuple[str, ...]
    story: tuple[str, ...]

    @property
    def command(self) -> str:
        """The command that does the same again."""
        whole, this = Scenario.of(self.scenario.seed), self.scenario
        text = f"python -m tests.torture --seed {this.seed}"
        if this.most_faults != whole.most_faults:
            text += f" --most {this.most_faults}"
        if this.faults != whole.faults:
            text += f" --only {','.join(this.faults) or 'none'}"
        if this.parts.bug:
            text += f" --bug {this.parts.bug}"
        return text


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the log lines of injected faults."""
    loggers = [logging.getLogger(f"dasktune.{name}") for name in QUIET]
    before = [one.disabled for one in loggers]
    try:
        for one in loggers:
            one.disabled = True
        yield
    finally:
        for one, was in zip(loggers, before, strict=True):
            one.disabled = was


def torture(scenario: Scenario) -> Finding:
    """Run a scenario and return its outcome."""
    problem: str | None = None
    run = Torture(scenario)
    with quiet():
        try:
            run.run()
        except ViolationError as error:
            problem = str(error)
        except DasktuneError as error:
            problem = f"{type(error).__name__}: {error}"
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            problem = f"{type(error).__name__}: {error}"
    return Finding(
        scenario=scenario,
        problem=problem,
        events=run.events,
        faults=tuple(run.faults),
        story=tuple(run.story()) if problem is not None else (),
    )


def shortest(finding: Finding) -> Finding:
    """Return a finding of the same seed with as few faults as will do, and fewest kinds."""
    best = _fewest(finding)
    for name in best.scenario.faults:
        fewer = tuple(one for one in best.scenario.faults if one != name)
        found = torture(replace(best.scenario, faults=fewer))
        if found.problem is not None and len(found.faults) <= len(best.faults):
            best = found
    return _fewest(best)


def _fewest(finding: Finding) -> Finding:
    found = (
        torture(replace(finding.scenario, most_faults=most))
        for most in range(finding.scenario.most_faults)
    )
    return next((one for one in found if one.problem is not None), finding)


def many(
    start: int, seeds: int, processes: int = 1, parts: Parts = PARTS
) -> Iterator[list[Finding]]:
    """Yield the findings of consecutive seeds, some at a time.

    Parameters
    ----------
    start
        The first seed.
    seeds
        How many.
    processes
        How many run at a time.
    parts
        The parts that are run.
    """
    spans = [
        (at, min(at + CHUNK, start + seeds), parts) for at in range(start, start + seeds, CHUNK)
    ]
    if processes == 1:
        yield from map(_span, spans)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(_span, spans)


def _span(span: tuple[int, int, Parts]) -> list[Finding]:
    start, stop, parts = span
    return [torture(Scenario.of(seed, parts)) for seed in range(start, stop)]
