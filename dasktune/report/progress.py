"""The live display of a run, on standard error.

The run loop calls it in every turn, so most calls only look at the clock. A drawing collects its
figures anew, at most 4 times a second, and less often if that is slow.
"""

from __future__ import annotations

import io
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any, Protocol

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dasktune._driver.runner import RunSnapshot
from dasktune._engine.engine import Engine
from dasktune._engine.trials import TrialRecord
from dasktune._results.state_words import WORDS
from dasktune._words import counted
from dasktune.graph.plan import Node, SearchPlan
from dasktune.report.formats import duration, number, percent
from dasktune.types import Direction, TrialState

REDRAW_SECONDS = 0.25
"""Least time between two drawings."""

SHARE_OF_TIME = 0.02
"""Largest share of the loop's time for drawing."""

RATE_SECONDS = 60.0
"""Length of the time over which the speed is measured, for the remaining time."""

STYLES = {
    TrialState.RUNNING: "cyan",
    TrialState.PAUSED: "yellow",
    TrialState.COMPLETE: "green",
    TrialState.PRUNED: "dim",
    TrialState.FAIL: "bold red",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """Requested steps, unique steps among them, and steps to train."""

    requested: int
    unique: int
    left: int


class Screen(Protocol):
    """A place for the present drawing, such as `rich.live.Live`."""

    def update(self, renderable: RenderableType, *, refresh: bool = False) -> None:
        """Replace the drawing."""


class CellOutput:
    """One output of a notebook's cell, which each drawing replaces; the last one is saved.

    Rich would use a widget in its place, which needs ipywidgets and is empty in a saved notebook.
    """

    def __init__(self) -> None:
        self._handle: Any = None

    def update(self, renderable: RenderableType, *, refresh: bool = False) -> None:
        """Replace the drawing."""
        console = Console(file=io.StringIO(), width=100, force_terminal=False, force_jupyter=False)
        with console.capture() as captured:
            console.print(renderable)
        text = "\n".join(line.rstrip() for line in captured.get().splitlines())
        shown = {"text/plain": text, "text/html": f"<pre>{escape(text)}</pre>"}
        if self._handle is None:
            from IPython.display import display as show_in_cell

            self._handle = show_in_cell(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


class ProgressDisplay:
    """Draws a running study; the run loop calls it in every turn.

    Parameters
    ----------
    engine
        The running engine; only read.
    live
        The display of rich, or the output of a cell.
    clock
        A monotonic clock in seconds.
    """

    def __init__(
        self,
        name: str,
        metric: str,
        direction: Direction,
        *,
        engine: Engine,
        live: Screen,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.redraws = 0
        self._name, self._metric, self._direction = name, metric, direction
        self._engine = engine
        self._live = live
        self._clock = clock
        self._due = -math.inf
        self.note = ""
        self._last: RunSnapshot | None = None
        self._speeds: deque[tuple[float, int]] = deque()

    def __call__(self, snapshot: RunSnapshot) -> None:
        """Keep a snapshot, and draw it if a drawing is due."""
        self._last = snapshot
        now = self._clock()
        if now < self._due:
            return
        self._draw(snapshot)
        spent = self._clock() - now
        self._due = now + max(REDRAW_SECONDS, spent / SHARE_OF_TIME)

    def finish(self) -> None:
        """Draw the last snapshot, which stays on the screen."""
        if self._last is not None:
            self._draw(self._last)

    def _draw(self, snapshot: RunSnapshot) -> None:
        self.redraws += 1
        self._live.update(self.render(snapshot), refresh=True)

    def render(self, snapshot: RunSnapshot) -> RenderableType:
        """Return the display for a snapshot."""
        trials = self._engine.trials.values()
        view = self._engine.view
        ahead = remaining(view.plan, trials)
        left = max(0, ahead.left - view.steps_unsaved)
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold", no_wrap=True)
        grid.add_column(ratio=1)
        grid.add_row(Text(self._name), self._times(snapshot, left))
        grid.add_row("trials", states_text(trials))
        grid.add_row("steps", self._steps(snapshot.steps_executed, left))
        grid.add_row("saved", saved_text(ahead))
        grid.add_row("workers", workers_text(snapshot))
        grid.add_row("best", self._best(trials, snapshot))
        if self.note:
            grid.add_row("", Text(self.note, "dim"))
        return grid

    def _times(self, snapshot: RunSnapshot, left: int) -> Text:
        speed = self._speed(snapshot)
        text = f"{duration(snapshot.seconds)} elapsed"
        if left and speed > 0:
            text += f", about {duration(left / speed)} left"
        return Text(text)

    def _speed(self, snapshot: RunSnapshot) -> float:
        """Return the recent steps per second of all workers together."""
        speeds = self._speeds
        speeds.append((snapshot.seconds, snapshot.steps_executed))
        while len(speeds) > 2 and speeds[1][0] < snapshot.seconds - RATE_SECONDS:
            speeds.popleft()
        seconds, steps = speeds[0]
        passed = snapshot.seconds - seconds
        return (snapshot.steps_executed - steps) / passed if passed > 0 else 0.0

    def _steps(self, executed: int, left: int) -> Table:
        row = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=max(1, executed + left), completed=executed, width=30)
        row.add_row(bar, Text(f"{executed:,} trained, {left:,} left"))
        return row

    def _best(self, trials: Iterable[TrialRecord], snapshot: RunSnapshot) -> Text:
        best = best_record(trials, self._direction)
        if best is not None:
            return Text(f"{self._metric} {number(best.value)} (trial {best.number})", "green")
        if snapshot.latest is not None and self._metric in snapshot.latest[1]:
            step, metrics = snapshot.latest
            value = number(metrics[self._metric])
            return Text(f"none yet; {self._metric} was {value} at step {step:,}", "dim")
        return Text("none yet", "dim")


class RunDisplay:
    """Shows the runs of a study, and what each waits for before its trials begin.

    Parameters
    ----------
    study
        A study with name, metric and direction.
    live
        The display of rich, or the output of a cell.
    """

    def __init__(self, study: Any, live: Screen) -> None:
        self._study, self._live = study, live
        self._progress: ProgressDisplay | None = None

    def say(self, text: str) -> None:
        """Draw a line that says what the run waits for."""
        self._live.update(Text.assemble((self._study.name, "bold"), "  ", text), refresh=True)

    def note(self, text: str) -> None:
        """Show a line below the run; in its place before there is one."""
        if self._progress is not None:
            self._progress.note = text
        if text and (self._progress is None or not self._progress.redraws):
            self.say(text)

    def follow(self, engine: Engine) -> ProgressDisplay:
        """Show the run of an engine; return what receives its snapshots."""
        study = self._study
        self._progress = ProgressDisplay(
            study.name, study.metric, study.direction, engine=engine, live=self._live
        )
        return self._progress

    def finish(self) -> None:
        """Draw the last snapshot, which stays on the screen."""
        if self._progress is not None:
            self._progress.finish()


@contextmanager
def display(study: Any, *, in_cell: bool) -> Iterator[RunDisplay]:
    """Show runs inside the context, on a terminal or in a notebook's cell.

    Parameters
    ----------
    study
        A study with name, metric and direction.
    in_cell
        Whether this process is the kernel of a notebook.
    """
    with ExitStack() as stack:
        live: Screen = (
            CellOutput()
            if in_cell
            else stack.enter_context(Live(console=Console(stderr=True), auto_refresh=False))
        )
        shown = RunDisplay(study, live)
        try:
            yield shown
        finally:
            shown.finish()


def remaining(plan: SearchPlan, trials: Iterable[TrialRecord]) -> Remaining:
    """Return the requested steps of trials, and those without a checkpoint."""
    requested = 0
    reached: dict[Node, int] = {}
    for trial in trials:
        until = trial.asked
        requested += until
        for node in plan.nodes_of(trial.number):
            if node.start < until:
                reached[node] = max(reached.get(node, 0), min(until, node.stop))
    return Remaining(
        requested=requested,
        unique=sum(until - node.start for node, until in reached.items()),
        left=sum(max(0, until - node.reached) for node, until in reached.items()),
    )


def best_record(trials: Iterable[TrialRecord], direction: Direction) -> TrialRecord | None:
    """Return the trial with the best finite value, except failed trials."""
    best, value = None, math.nan
    for trial in trials:
        if trial.value is None or trial.state is TrialState.FAIL:
            continue
        first = best is None and math.isfinite(trial.value)
        if first or (math.isfinite(trial.value) and direction.better(trial.value, value)):
            best, value = trial, trial.value
    return best


def states_text(trials: Iterable[TrialRecord]) -> Text:
    """Return the number of trials in each state."""
    counts = Counter(trial.state for trial in trials)
    parts = [(f"{counts[state]:,} {WORDS[state]}", STYLES[state]) for state in STYLES]
    shown = [part for part, state in zip(parts, STYLES, strict=True) if counts[state]]
    return Text("  ").join(Text(*part) for part in shown) if shown else Text("none yet", "dim")


def saved_text(ahead: Remaining) -> Text:
    """Return the share of requested steps that sharing saves."""
    saved = ahead.requested - ahead.unique
    if not ahead.requested:
        return Text("—", "dim")
    share = percent(saved, ahead.requested)
    return Text(f"{share} of {counted(ahead.requested, 'step')} asked for")


def workers_text(snapshot: RunSnapshot) -> Text:
    """Return the number of busy workers, and of waiting stages."""
    if not snapshot.workers:
        return Text("waiting for workers", "bold yellow")
    stages = counted(snapshot.stages_left, "stage")
    return Text(f"{snapshot.busy:,} of {snapshot.workers:,} busy, {stages} to start")
