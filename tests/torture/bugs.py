"""Bugs to plant: each breaks one rule of the machine, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dasktune.driver.attempts import AttemptLost, Attempts, Following
from dasktune.driver.reuse import KnownStates
from dasktune.engine import engine as engines
from dasktune.engine.engine import Engine
from dasktune.engine.event_log import Record
from dasktune.engine.session import Session, after_last_snapshot
from dasktune.graph import placement as placing
from dasktune.graph.attempts import Attempt
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.frontier import Frontier
from dasktune.graph.plan import Node, SearchPlan
from dasktune.worker.messages import StageMessage, StageProgress

Plant = Callable[[pytest.MonkeyPatch], None]


def an_attempt_is_never_released(patch: pytest.MonkeyPatch) -> None:
    release = Dispatcher._release

    def forgets(self: Dispatcher, attempt: Attempt) -> None:
        if attempt.ended and attempt.position == attempt.stop:
            release(self, attempt)

    patch.setattr(Dispatcher, "_release", forgets)


def a_report_is_delivered_twice(patch: pytest.MonkeyPatch) -> None:
    tell = Engine._tell

    def twice(self: Engine, report: Any, now: float) -> None:
        tell(self, report, now)
        trial = self.trials[report.trial]
        if trial.steps == report.step and trial.until is not None:
            trial.steps -= 1
            tell(self, report, now)

    patch.setattr(Engine, "_tell", twice)


def requests_are_not_restored(patch: pytest.MonkeyPatch) -> None:
    def forgets(self: Engine, session: Session, now: float) -> None:
        for number in sorted(session.numbers.values()):
            self._make_known(self.trials[number])

    patch.setattr(Engine, "_ask_again", forgets)


def repeated_steps_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    close = Dispatcher._close

    def forgets(self: Dispatcher, attempt: Attempt) -> None:
        attempt.repeated = 0
        close(self, attempt)

    patch.setattr(Dispatcher, "_close", forgets)


def a_split_loses_checkpoints(patch: pytest.MonkeyPatch) -> None:
    split = SearchPlan._split

    def loses(self: SearchPlan, node: Node, step: int) -> Node:
        node.checkpoints.pop(step, None)
        return split(self, node, step)

    patch.setattr(SearchPlan, "_split", loses)


def a_dead_worker_still_makes_progress(patch: pytest.MonkeyPatch) -> None:
    """Planted bug: a lost attempt is kept, and its late messages count."""
    lose, receive, lost = Attempts.lose, Attempts.receive, set()

    def remembers(self: Attempts, worker: str, **options: bool) -> list[Following]:
        following = lose(self, worker, **options)
        gone = {item.attempt for item in following if isinstance(item, AttemptLost)}
        lost.update(gone & self._open.keys())
        return following

    def counts(self: Attempts, message: StageMessage, now: float) -> list[Following]:
        if message.attempt in lost and isinstance(message, StageProgress):
            self._view._dispatcher.steps_executed += 1
        return receive(self, message, now)

    patch.setattr(Attempts, "lose", remembers)
    patch.setattr(Attempts, "receive", counts)


def a_tuner_goes_on_from_its_first_snapshot(patch: pytest.MonkeyPatch) -> None:
    def first(records: list[Record]) -> list[Record]:
        last = after_last_snapshot(records)
        snapshot = next((one for one in records if one["kind"] == "snapshot"), None)
        return last if snapshot is None else [snapshot, *last[1:]]

    patch.setattr(engines, "after_last_snapshot", first)


def a_state_is_evicted_that_a_stage_starts_from(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Dispatcher, "starts", ())


def a_drained_dispatcher_stays_so(patch: pytest.MonkeyPatch) -> None:
    dismiss = Dispatcher.dismiss

    def stays(self: Dispatcher) -> None:
        before = self._draining
        dismiss(self)
        self._draining = before

    patch.setattr(Dispatcher, "dismiss", stays)


def children_do_not_hear_of_a_state(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Frontier, "state_arrived", lambda self, node: self.update(node))


def states_that_no_row_tells_of_are_not_found(patch: pytest.MonkeyPatch) -> None:
    fill = KnownStates._fill_step

    def skips(self: KnownStates, plan: SearchPlan, node: Node, step: int, key: str) -> None:
        if key not in self._unrecorded:
            fill(self, plan, node, step, key)

    patch.setattr(KnownStates, "_fill_step", skips)


def metrics_are_those_of_the_step_before(patch: pytest.MonkeyPatch) -> None:
    take = Dispatcher._take_reports

    def shifts(self: Dispatcher, node: Node, reports: Any) -> None:
        if len(reports) > 2:
            (first, _), (second, metrics), *rest = reports
            reports = ((first, metrics), (second, metrics), *rest)
        take(self, node, reports)

    patch.setattr(Dispatcher, "_take_reports", shifts)


def a_worker_is_given_three_stages(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(placing, "QUEUE_LENGTH", 3)
    patch.setattr(placing.Placing, "_continue_paths", _continues_all_paths)


def _continues_all_paths(self: placing.Placing, now: float) -> None:
    while self._frontier.continued:
        attempt = self._attempts.get(self._frontier.continued.popleft())
        if attempt is not None and not attempt.ended:
            self._continue_with(self._next_of(attempt), attempt, now)


def what_a_lost_worker_had_queued_is_kept(patch: pytest.MonkeyPatch) -> None:
    def loses_one(self: Dispatcher, worker: str) -> None:
        if self._placing.lose(worker):
            for attempt in [one for one in self.attempts.values() if one.worker == worker][:1]:
                self._close(attempt)
                self._release(attempt)

    patch.setattr(Dispatcher, "_worker_lost", loses_one)


def losses_are_blamed_on_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Dispatcher, "_blame", lambda self, attempt: None)


def _all() -> Iterator[Plant]:
    here = globals()
    unplanted = {"Callable", "Iterable", "Iterator"}
    for name, found in here.items():
        is_plant = callable(found) and getattr(found, "__module__", "") == __name__
        if is_plant and not name.startswith("_") and name not in unplanted:
            yield found


BUGS = tuple(_all())
