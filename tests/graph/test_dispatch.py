"""The dispatcher by event lists: what it says to what it is told."""

from __future__ import annotations

from collections.abc import Sequence as Many

import pytest

from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import (
    Deliver,
    Evicted,
    Failed,
    FailTrial,
    Found,
    Instruction,
    Omitted,
    Progress,
    RunStage,
    Saved,
    SaveMissed,
    SavePoint,
    Started,
    StopStage,
    Taken,
    TrainingEnded,
    WorkerGone,
    WorkerJoined,
    WorkerLeaving,
    WorkerLost,
)
from dasktune.graph.keys import root_key
from dasktune.graph.plan import Node
from dasktune.graph.save_policy import SavePolicy
from dasktune.needs import Needs
from dasktune.sequences import Constant, Piecewise, Sequence
from dasktune.types import Step

Said = tuple[object, ...]
PLAIN = SavePolicy(at_changes=False)


def turn(at: Step, value: float = 1.0) -> Sequence:
    """Return a sequence that parts from `Constant(0.5)` at a step."""
    return Piecewise([0.5, value], boundaries=[at])


class Table:
    """A dispatcher and short words for what it is told and says."""

    def __init__(self, **options: object) -> None:
        self.dispatcher = Dispatcher(
            root_key("table", 0),
            DispatchOptions(attempt_prefix="a", **{"saves": PLAIN, **options}),  # type: ignore[arg-type]
        )
        self.count = 0

    def trial(self, sequence: Sequence, max_steps: Step) -> list[Said]:
        self.count += 1
        return said(self.dispatcher.register(self.count - 1, {"lr": sequence}, max_steps))

    def extend(self, trial: int, until: Step, priority: float = 0.0) -> list[Said]:
        return said(self.dispatcher.extend(trial, until, priority, 0.0))

    def stop(self, trial: int) -> list[Said]:
        return said(self.dispatcher.stop(trial, 0.0))

    def join(self, *workers: str) -> list[Said]:
        return [one for name in workers for one in self.tell(WorkerJoined(worker=name))]

    def tell(self, event: object, now: float = 0.0) -> list[Said]:
        return said(self.dispatcher.handle(event, now))  # type: ignore[arg-type]

    def saved(self, attempt: int, step: Step, at: Many[Step] | None = None) -> list[Said]:
        reports = tuple((s, {"loss": float(s)}) for s in ([step] if at is None else at))
        return self.tell(Saved(attempt=f"{attempt}-a", step=step, reports=reports))

    def omitted(self, attempt: int, step: Step) -> list[Said]:
        reports = ((step, {"loss": float(step)}),)
        return self.tell(Omitted(attempt=f"{attempt}-a", step=step, reports=reports))

    def ended(self, attempt: int, step: Step, status: str = "trained") -> list[Said]:
        seconds = float(step)
        return self.tell(
            TrainingEnded(attempt=f"{attempt}-a", step=step, status=status, seconds=seconds)  # type: ignore[arg-type]
        )

    def failed(self, attempt: int, step: Step) -> list[Said]:
        return self.tell(Failed(attempt=f"{attempt}-a", step=step, message="boom", traceback="tb"))

    def started(self, attempt: int) -> list[Said]:
        return self.tell(Started(attempt=f"{attempt}-a"))

    def progress(self, attempt: int, step: Step) -> list[Said]:
        return self.tell(Progress(attempt=f"{attempt}-a", step=step))


def said(instructions: list[Instruction]) -> list[Said]:
    """Return instructions as short tuples; an attempt is its number."""
    found: list[Said] = []
    for one in instructions:
        match one:
            case RunStage():
                after = None if one.after is None else int(one.after[:-2])
                found.append(("run", int(one.attempt[:-2]), one.worker, one.start, one.stop, after))
            case StopStage():
                found.append(("stop", int(one.attempt[:-2]), one.at))
            case SavePoint():
                found.append(("save", int(one.attempt[:-2]), one.step))
            case Deliver():
                found.append(("deliver", one.report.trial, one.report.step))
            case FailTrial():
                found.append(("fail", one.trial, one.step, one.message))
    return found


def alone_at(*stops: Step) -> Table:
    """Return a table with two workers on which a trial alone was trained to some steps."""
    table = Table()
    said(table.dispatcher.register(0, {"lr": Constant(0.5)}, 16, is_alone=True))
    table.join("w0", "w1")
    for attempt, stop in enumerate(stops):
        assert table.extend(0, stop) == [("run", attempt, "w0", 0, stop, None)]
        assert table.saved(attempt, stop) == [("deliver", 0, stop)]
        table.ended(attempt, stop)
    return table


def test_trial_alone_begins_each_stage_at_step_0() -> None:
    table = alone_at(4, 10)
    assert table.extend(0, 16) == [("run", 2, "w0", 0, 16, None)]
    table.saved(2, 16)
    table.ended(2, 16)
    dispatcher = table.dispatcher
    assert (dispatcher.open.steps_executed, dispatcher.open.steps_repeated) == (30, 14)


def test_trial_alone_saves_where_reports_are_due() -> None:
    table = alone_at(4)
    (order,) = table.dispatcher.extend(0, 16, 0.0, 0.0, (8, 12))
    assert isinstance(order, RunStage)
    assert (order.start, order.stop, order.saves) == (0, 16, (8, 12))
    assert table.saved(1, 8) == [("deliver", 0, 8)]
    (again,) = table.tell(WorkerLost(worker=order.worker))
    assert again[:2] + again[3:] == ("run", 2, 0, 16, None)


def test_trial_alone_that_raises_is_tried_elsewhere() -> None:
    table = alone_at(4)
    table.extend(0, 16)
    assert table.failed(1, 2) == [("run", 2, "w1", 0, 16, None)]
    assert table.failed(2, 2) == [("fail", 0, 2, "boom")]


def test_separated_trial_shares_nothing_any_more() -> None:
    table = two_branches()
    table.join("w0")
    table.extend(0, 6)
    table.extend(1, 9)
    for attempt, stop in ((0, 4), (1, 6), (2, 9)):
        table.saved(attempt, stop)
        table.ended(attempt, stop)
    assert table.dispatcher.separate(1, {"lr": turn(4)}, 12) == 9
    assert table.extend(1, 12) == [("run", 3, "w0", 0, 12, None)]
    assert table.trial(Constant(2.0), 6) == []
    assert table.dispatcher.separate(2, {"lr": Constant(2.0)}, 6) == 0


def two_branches() -> Table:
    """Return a trunk of 4 steps with branches to 6 and to 9, nothing asked for yet."""
    table = Table()
    table.trial(turn(4, 0.25), 6)
    table.trial(turn(4), 9)
    return table


def test_the_critical_path_goes_first() -> None:
    table = Table()
    table.trial(turn(1, 2.0), 3)
    table.trial(turn(1, 3.0), 8)
    table.trial(Constant(9.0), 5)
    for trial, until in enumerate((3, 8, 5)):
        table.extend(trial, until)
    assert table.join("w0") == [("run", 0, "w0", 0, 1, None), ("run", 1, "w0", 1, 8, 0)]
    assert table.join("w1") == [("run", 2, "w1", 0, 5, None)]
    assert table.saved(0, 1) == []
    assert table.join("w2") == [("run", 3, "w2", 1, 3, None)]


def test_priority_goes_before_length() -> None:
    table = Table()
    table.trial(Constant(1.0), 9)
    table.trial(Constant(2.0), 2)
    table.extend(0, 9)
    table.extend(1, 2)
    assert said(table.dispatcher.rank(1, 5.0)) == []
    assert table.join("w0") == [("run", 0, "w0", 0, 2, None)]


def test_rank_of_a_trial_counts_for_all_of_its_requests() -> None:
    table = two_branches()
    for trial, until in enumerate((6, 9)):
        table.dispatcher.extend(trial, until, 0.0, 0.0, reports=[4])
    assert said(table.dispatcher.rank(0, 5.0)) == []
    assert table.join("w0") == [("run", 0, "w0", 0, 4, None), ("run", 1, "w0", 4, 6, 0)]


def test_a_stage_has_the_highest_priority_of_all_it_serves() -> None:
    table = Table()
    table.trial(Constant(0.5), 2)
    table.trial(turn(2), 9)
    table.trial(Constant(3.0), 9)
    for trial, (until, priority) in enumerate([(2, 5.0), (9, 0.0), (9, 1.0)]):
        table.extend(trial, until, priority)
    assert table.join("w0")[0] == ("run", 0, "w0", 0, 2, None)
    assert table.join("w1") == [("run", 2, "w1", 0, 9, None)]


def test_worker_gets_two_stages_of_a_path_then_the_longest_path() -> None:
    table = Table()
    for trial, at in enumerate((2, 4, 6)):
        table.trial(turn(at), 7 + trial)
        table.extend(trial, 7 + trial)
    assert table.join("w0") == [("run", 0, "w0", 0, 2, None), ("run", 1, "w0", 2, 4, 0)]
    assert table.ended(0, 2) == []
    assert table.saved(0, 2) == []
    assert table.join("w1") == [("run", 2, "w1", 2, 7, None)]
    assert table.ended(1, 4) == []
    assert table.saved(1, 4)[0] == ("run", 3, "w0", 4, 9, None)


def test_branch_ahead_of_a_running_stage_is_saved_at_its_start() -> None:
    table = Table()
    table.trial(Constant(0.5), 9)
    table.extend(0, 9)
    table.join("w0", "w1")
    table.started(0)
    table.progress(0, 3)
    assert table.trial(turn(5), 9) == [("save", 0, 5)]
    assert table.extend(1, 9) == []
    assert table.saved(0, 5) == [("run", 1, "w1", 5, 9, None)]
    assert table.saved(0, 9) == [("deliver", 0, 9)]
    assert table.ended(0, 9) == []
    table.saved(1, 9)
    table.ended(1, 9)
    assert (table.dispatcher.open.steps_executed, table.dispatcher.open.steps_repeated) == (13, 0)


@pytest.mark.parametrize("late", [False, True])
def test_branch_behind_a_running_stage_uses_nearest_checkpoint(late: bool) -> None:
    table = Table()
    table.trial(Constant(0.5), 9)
    table.extend(0, 9)
    table.join("w0", "w1")
    table.saved(0, 2)
    if not late:
        table.progress(0, 6)
    assert table.trial(turn(5), 9) == ([("save", 0, 5)] if late else [])
    ran = table.extend(1, 9)
    if late:
        # The worker had trained past step 5 when the save-point reached it.
        ran += table.tell(SaveMissed(attempt="0-a", step=5))
        table.progress(0, 6)
    assert ran == [("run", 1, "w1", 2, 5, None), ("run", 2, "w1", 5, 9, 1)]
    table.saved(1, 5)
    table.ended(1, 5)
    assert table.dispatcher.open.steps_repeated == 3


def test_a_missed_save_says_how_far_the_stage_is() -> None:
    table = Table()
    table.trial(Constant(0.5), 9)
    table.extend(0, 9)
    table.join("w0")
    assert table.trial(turn(5), 9) == [("save", 0, 5)]
    table.tell(SaveMissed(attempt="0-a", step=5))
    assert table.trial(turn(4, 2.0), 9) == [], "it is behind, too"
    assert table.trial(turn(6, 2.0), 9) == [("save", 0, 6)]
    table.tell(WorkerLost(worker="w0"))
    assert table.dispatcher.open.steps_executed == 5


def test_metrics_of_a_running_stage_answer_an_earlier_step() -> None:
    table = Table()
    table.trial(Constant(0.5), 9)
    table.extend(0, 9)
    table.join("w0", "w1")
    table.progress(0, 6)
    table.trial(Constant(0.5), 9)
    assert table.extend(1, 4) == [("run", 1, "w1", 0, 4, None)]
    assert table.saved(0, 7, at=range(1, 8)) == [("deliver", 1, 4), ("stop", 1, None)]


def test_withdrawing_the_last_request_stops_the_stage() -> None:
    table = two_branches()
    table.extend(0, 6)
    table.extend(1, 9)
    table.join("w0")
    assert table.stop(1) == [("stop", 1, None)]
    assert table.stop(0) == [("stop", 0, None)]
    assert table.ended(0, 2, "stopped") == []
    assert not table.dispatcher.is_idle
    assert table.saved(0, 2) == []
    assert table.ended(1, 4, "skipped") == []
    assert table.dispatcher.is_idle
    # What was kept there is where it goes on.
    assert table.extend(0, 6)[0] == ("run", 2, "w0", 2, 4, None)


def test_withdrawing_a_part_ends_the_stage_earlier() -> None:
    table = Table()
    table.trial(Constant(0.5), 9)
    table.trial(Constant(0.5), 9)
    table.extend(0, 9)
    table.join("w0")
    table.progress(0, 2)
    assert table.extend(1, 6) == [("save", 0, 6)]
    assert table.stop(0) == [("stop", 0, 6)]
    assert table.saved(0, 6) == [("deliver", 1, 6)]
    assert table.ended(0, 6, "stopped") == []
    assert table.dispatcher.is_idle


def test_stage_that_overshoots_its_new_end_keeps_its_steps() -> None:
    table = Table()
    table.trial(Constant(0.5), 9)
    table.trial(Constant(0.5), 9)
    table.extend(0, 9)
    table.join("w0")
    table.extend(1, 4)
    table.stop(0)
    table.progress(0, 7)
    table.tell(SaveMissed(attempt="0-a", step=4))
    table.ended(0, 7, "stopped")
    assert table.saved(0, 7, at=range(1, 8)) == [("deliver", 1, 4), ("stop", 1, None)]
    table.ended(1, 0, "stopped")
    assert table.extend(0, 9) == [("run", 2, "w0", 7, 9, None)]
    assert table.dispatcher.open.steps_repeated == 0


def test_a_lost_worker_costs_what_was_not_durable() -> None:
    table = two_branches()
    table.extend(1, 9)
    table.join("w0", "w1")
    table.started(0)
    table.saved(0, 2)
    table.progress(0, 3)
    assert table.tell(WorkerLost(worker="w0")) == [("run", 2, "w1", 2, 4, None)]
    assert table.dispatcher.open.steps_executed == 3
    assert table.saved(0, 4) == [], "what an old attempt says is dropped"
    table.ended(2, 4)
    assert table.dispatcher.open.steps_repeated == 1


def test_stages_of_a_worker_that_is_gone_wait_for_its_loss() -> None:
    table = two_branches()
    table.extend(1, 9)
    table.join("w0", "w1")
    table.started(0)
    table.progress(0, 3)
    assert table.tell(WorkerGone(worker="w0")) == []
    assert table.dispatcher.slots.keys() == {"w1"}
    assert table.tell(SaveMissed(attempt="0-a", step=4)) == []
    assert table.saved(0, 2) == []
    assert table.tell(WorkerLost(worker="w0")) == [("run", 2, "w1", 2, 4, None)]
    assert table.dispatcher.open.steps_executed == 3


def test_stage_behind_one_of_a_worker_that_is_gone_waits() -> None:
    table = Table()
    table.trial(Constant(0.5), 9)
    table.extend(0, 5)
    assert table.join("w0") == [("run", 0, "w0", 0, 5, None)]
    table.started(0)
    assert table.tell(WorkerGone(worker="w0")) == []
    assert table.extend(0, 9) == []
    assert table.join("w1") == []
    assert table.tell(WorkerLost(worker="w0"))[0] == ("run", 1, "w1", 0, 5, None)


def test_a_stage_that_is_lost_too_often_fails_its_trials() -> None:
    table = two_branches()
    table.dispatcher.options = DispatchOptions(losses_allowed=1, saves=PLAIN)
    table.extend(1, 9)
    table.join("w0")
    table.started(0)
    assert table.tell(WorkerLost(worker="w0")) == []
    table.join("w1")
    table.tell(Started(attempt="2-a"))
    message = (
        "its worker was lost 2 times in a row in or soon after step 0, last w1; it may need more "
        "memory than there is"
    )
    assert table.tell(WorkerLost(worker="w1")) == [("fail", 1, 0, message)]


def lost_at(*steps: Step, losses_allowed: int = 1) -> list[Said]:
    """Return the instructions after the last loss, when workers are lost at these steps in turn."""
    table = Table()
    table.dispatcher.options = DispatchOptions(losses_allowed=losses_allowed, saves=PLAIN)
    table.trial(Constant(0.5), 9)
    table.extend(0, 9)
    for attempt, step in enumerate(steps):
        table.join(f"w{attempt}")
        table.started(attempt)
        table.progress(attempt, step)
        said = table.tell(WorkerLost(worker=f"w{attempt}"))
    return said


def test_lost_stage_with_progress_each_time_does_not_fail() -> None:
    assert lost_at(1, 2, 3, 4, 5) == []
    assert lost_at(3, 1, losses_allowed=2) == []
    assert lost_at(3, 1, 4, 2, losses_allowed=2) == []
    assert lost_at(3, 1, 2, losses_allowed=2)[0][:3] == ("fail", 0, 2)


def test_announced_loss_of_a_worker_does_not_count_for_its_stage() -> None:
    table = two_branches()
    table.dispatcher.options = DispatchOptions(losses_allowed=0, saves=PLAIN)
    table.extend(1, 9)
    table.join("w0")
    table.started(0)
    table.tell(WorkerLeaving(worker="w0"))
    assert table.tell(WorkerLost(worker="w0")) == []


def test_blameless_loss_of_a_worker_does_not_fail_its_stage() -> None:
    table = two_branches()
    table.dispatcher.options = DispatchOptions(losses_allowed=0, saves=PLAIN)
    table.extend(1, 9)
    table.join("w0")
    table.started(0)
    assert table.tell(WorkerLost(worker="w0", is_blameless=True)) == []


def test_lost_stage_runs_alone_until_it_is_durable() -> None:
    table = two_branches()
    table.extend(0, 6)
    table.extend(1, 9)
    table.join("w0")
    table.started(0)
    table.tell(WorkerLost(worker="w0"))
    assert table.join("w1") == [("run", 2, "w1", 0, 4, None)]
    table.started(2)
    table.ended(2, 4)
    assert table.saved(2, 4)[0][:1] != ("fail",)
    blamed = table.dispatcher.frontier.work(table.dispatcher.plan.nodes_of(1)[-1])
    assert blamed.losses == 0, "the next stage has its own count"


@pytest.mark.parametrize(
    ("lost_at", "losses"), [(2, [(1, 2), (0, -1)]), (3, [(0, -1), (1, 3)]), (6, [(0, -1), (1, 6)])]
)
def test_divided_edge_keeps_losses_on_the_part_that_had_them(
    lost_at: Step, losses: list[tuple[int, Step]]
) -> None:
    table = Table()
    table.trial(Constant(0.5), 9)
    table.extend(0, 9)
    table.join("w0")
    table.started(0)
    table.progress(0, lost_at)
    table.tell(WorkerLost(worker="w0"))
    table.trial(Constant(0.5), 3)
    top, bottom = table.dispatcher.plan.nodes_of(0)[:2]
    works = [table.dispatcher.frontier.work(node) for node in (top, bottom)]
    assert [(work.losses, work.lost_at) for work in works] == losses
    assert [work.trained for work in works] == [min(lost_at, 3), max(lost_at, 3)]


def test_divided_edge_keeps_the_classes_that_it_has_left() -> None:
    table = Table()
    table.trial(Constant(0.5), 9)
    table.extend(0, 9)
    frontier = table.dispatcher.frontier
    frontier.work(table.dispatcher.plan.paths[0].leaf).left = frozenset({"slow"})
    table.trial(Constant(0.5), 3)
    top, bottom = table.dispatcher.plan.nodes_of(0)[:2]
    assert [frontier.work(node).left for node in (top, bottom)] == [{"slow"}, {"slow"}]


def test_a_stage_that_was_not_seen_to_start_is_not_blamed() -> None:
    table = two_branches()
    table.dispatcher.options = DispatchOptions(losses_allowed=0, saves=PLAIN)
    table.extend(1, 9)
    table.join("w0")
    assert table.tell(WorkerLost(worker="w0")) == []
    assert table.dispatcher.wanted.keys() == {1}


def test_failed_step_is_retried_elsewhere_then_fails_its_trials() -> None:
    table = two_branches()
    table.extend(0, 6)
    table.extend(1, 9)
    table.trial(Constant(0.5), 9)
    table.join("w0", "w1")
    assert table.failed(0, 3) == [("run", 2, "w1", 0, 4, None), ("run", 3, "w1", 4, 6, 2)]
    assert table.ended(1, 4, "skipped") == []
    assert table.extend(2, 3) == [("save", 2, 3)]
    assert table.saved(2, 3) == [("deliver", 2, 3)]
    failures = [("fail", 0, 3, "boom"), ("fail", 1, 3, "boom"), ("stop", 3, None)]
    assert sorted(table.failed(2, 3)) == failures
    assert table.extend(2, 9) == [("fail", 2, 3, "boom")], "it is known by now"


def test_a_failed_stage_waits_for_another_worker() -> None:
    table = two_branches()
    table.extend(1, 9)
    table.trial(Constant(7.0), 30)
    table.extend(2, 30)
    table.join("w0", "w1")
    table.failed(1, 3)
    assert table.ended(2, 4, "skipped") == [], "w1 is idle, but there it failed"
    table.saved(0, 30)
    assert table.ended(0, 30)[0] == ("run", 3, "w0", 0, 4, None)


def test_a_failure_on_the_only_worker_is_tried_again_there() -> None:
    table = two_branches()
    table.extend(1, 9)
    table.join("w0")
    assert table.failed(0, 3) == []
    again = [("run", 2, "w0", 0, 4, None), ("run", 3, "w0", 4, 9, 2)]
    assert table.ended(1, 4, "skipped") == again
    assert ("fail", 1, 3, "boom") in table.failed(2, 3)


def test_divided_stage_keeps_the_failure_of_its_step() -> None:
    table = two_branches()
    table.extend(1, 9)
    table.join("w0")
    table.failed(0, 1)
    table.trial(turn(2), 9)
    assert table.ended(1, 4, "skipped")[0] == ("run", 2, "w0", 0, 2, None)
    assert ("fail", 1, 1, "boom") in table.failed(2, 1)


def test_two_steps_that_fail_once_each_fail_no_trial() -> None:
    table = two_branches()
    table.extend(1, 9)
    table.join("w0")
    for number, step in enumerate((1, 3)):
        assert table.failed(2 * number, step) == []
        assert table.ended(2 * number + 1, 4, "skipped")[0][0] == "run"
    assert table.dispatcher.wanted.keys() == {1}


def test_a_state_without_metrics_is_evaluated() -> None:
    def known(node: Node) -> None:
        node.checkpoints.add(4)

    dispatcher = Dispatcher(root_key("known", 0), DispatchOptions(saves=PLAIN), on_new=known)
    dispatcher.register(0, {"lr": Constant(1.0)}, 4)
    dispatcher.extend(0, 4, 0.0, 0.0)
    assert said(dispatcher.handle(WorkerJoined(worker="w0"), 0.0)) == [("run", 0, "w0", 4, 4, None)]
    saved = Saved(attempt="0-a", step=4, reports=((4, {"loss": 1.0}),))
    assert said(dispatcher.handle(saved, 0.0)) == [("deliver", 0, 4)]
    dispatcher.handle(TrainingEnded(attempt="0-a", step=4, status="trained"), 0.0)
    assert dispatcher.is_idle
    assert dispatcher.open.steps_executed == 0


def test_an_evaluation_that_is_stopped_before_it_began_is_over() -> None:
    table = Table()
    table.trial(Constant(1.0), 4)
    table.extend(0, 4)
    table.join("w0")
    table.saved(0, 4, at=())
    table.ended(0, 4)
    assert table.dispatcher.attempts.keys() == {"1-a"}
    assert table.stop(0) == [("stop", 1, None)]
    table.ended(1, 4, "stopped")
    assert table.dispatcher.is_idle


def test_a_finished_trial_is_extended_from_its_end() -> None:
    table = Table()
    table.trial(Constant(1.0), 4)
    table.extend(0, 4)
    table.join("w0")
    table.saved(0, 4)
    table.ended(0, 4)
    assert table.extend(0, 4) == [("deliver", 0, 4)]
    assert table.extend(0, 7) == [("run", 1, "w0", 4, 7, None)]


def test_a_stage_that_waits_behind_another_is_stopped_by_itself() -> None:
    table = two_branches()
    table.extend(1, 9)
    table.join("w0")
    table.extend(0, 6)
    assert table.stop(1) == [("stop", 1, None)]
    assert table.ended(0, 4) == []
    assert table.ended(1, 4, "stopped") == []
    assert table.saved(0, 4) == [("run", 2, "w0", 4, 6, None)]


def test_the_next_path_is_chosen_before_the_worker_runs_dry() -> None:
    table = Table(lookahead_seconds=1.5)
    for trial, value in enumerate((1.0, 2.0, 3.0)):
        table.trial(Constant(value), 9)
        table.extend(trial, 9)
    assert table.join("w0") == [("run", 0, "w0", 0, 9, None)]
    table.tell(Started(attempt="0-a"), 10.0)
    ended = TrainingEnded(attempt="0-a", step=9, status="trained", seconds=9.0)
    assert table.tell(ended, 19.0) == [("run", 1, "w0", 0, 9, None)]
    table.tell(Started(attempt="1-a"), 20.0)
    assert table.dispatcher.next_tick(20.0) == 27.5
    assert table.tell(Progress(attempt="1-a", step=7), 27.0) == []
    assert table.tell(Progress(attempt="1-a", step=8), 28.0) == [("run", 2, "w0", 0, 9, None)]
    assert table.dispatcher.next_tick(28.0) is None


def test_second_start_of_an_attempt_changes_nothing() -> None:
    table = Table(lookahead_seconds=1.5)
    for trial, value in enumerate((1.0, 2.0)):
        table.trial(Constant(value), 9)
        table.extend(trial, 9)
    table.join("w0")
    table.tell(Started(attempt="0-a"), 10.0)
    table.tell(TrainingEnded(attempt="0-a", step=9, status="trained", seconds=9.0), 19.0)
    table.trial(Constant(3.0), 9)
    table.extend(2, 9)
    table.tell(Started(attempt="1-a"), 20.0)
    assert table.tell(Started(attempt="1-a"), 25.0) == []
    assert table.tell(Started(attempt="of another run"), 25.0) == []
    assert table.dispatcher.next_tick(25.0) == 27.5, "by the first start"


def test_later_request_of_less_priority_keeps_a_stage_first() -> None:
    table = Table()
    for value in (1.0, 1.0, 2.0):
        table.trial(Constant(value), 4)
    table.extend(0, 4, priority=5.0)
    table.extend(1, 4, priority=1.0)
    table.extend(2, 4, priority=3.0)
    table.join("w0")
    delivered = {each[1] for each in table.saved(0, 4) if each[0] == "deliver"}
    assert delivered == {0, 1}


@pytest.mark.parametrize("position", [7, 9], ids=["late", "ahead of the clock"])
def test_stage_that_fits_no_slot_makes_no_tick_due(position: Step) -> None:
    table = Table(lookahead_seconds=1.5)
    for trial in range(2):
        table.trial(Constant(1.0 + trial), 9)
    needs = Needs.of({"tags": "absent"})
    table.dispatcher.register(2, {"lr": Constant(3.0)}, 9, needs=needs)
    table.extend(0, 9)
    table.join("w0")
    table.tell(Started(attempt="0-a"), 10.0)
    table.tell(TrainingEnded(attempt="0-a", step=9, status="trained", seconds=9.0), 19.0)
    table.saved(0, 9)
    table.extend(1, 9)
    table.extend(2, 9)
    table.tell(Started(attempt="1-a"), 20.0)
    assert table.dispatcher.next_tick(20.0) == 27.5, "something is ready"
    now = 28.0 if position == 9 else 40.0
    assert table.tell(Progress(attempt="1-a", step=position), now) == []
    assert table.dispatcher.next_tick(now) is None
    assert table.dispatcher.next_tick(now + 0.01) is None


@pytest.mark.parametrize("seconds", [0.0, 0.1], ids=["unknown", "a fast first step"])
def test_slow_stage_does_not_delay_the_path_behind_it(seconds: float) -> None:
    table = Table(lookahead_seconds=1.5)
    for trial, value in enumerate((1.0, 2.0)):
        table.trial(Constant(value), 9)
        table.extend(trial, 9)
    table.join("w0")
    table.tell(Started(attempt="0-a"), 10.0)
    assert table.dispatcher.next_tick(10.0) is None
    assert table.tell(Progress(attempt="0-a", step=1, seconds=seconds), 100.0) == []
    assert table.join("w1") == [("run", 1, "w1", 0, 9, None)]


def test_no_tick_is_due_while_draining() -> None:
    table = Table(lookahead_seconds=1.5)
    for trial in range(2):
        table.trial(Constant(1.0 + trial), 9)
        table.extend(trial, 9)
    table.join("w0")
    table.tell(Started(attempt="0-a"), 10.0)
    table.tell(TrainingEnded(attempt="0-a", step=9, status="trained", seconds=9.0), 19.0)
    table.tell(Started(attempt="1-a"), 20.0)
    assert table.dispatcher.next_tick(20.0) == 27.5
    table.dispatcher.drain()
    assert table.dispatcher.next_tick(40.0) is None, "the driver would not wait"


def test_draining_ends_everything_and_starts_nothing() -> None:
    table = two_branches()
    table.extend(1, 9)
    table.join("w0")
    assert said(table.dispatcher.drain()) == [("stop", 0, None), ("stop", 1, None)]
    assert table.dispatcher.idle_workers == 0
    table.ended(0, 3, "stopped")
    assert table.ended(1, 4, "skipped") == []
    assert table.saved(0, 3) == []
    assert table.dispatcher.is_idle
    table.dispatcher.dismiss()
    assert table.dispatcher.slots == {}


def test_a_worker_that_leaves_ends_what_it_has_and_gets_no_more() -> None:
    table = two_branches()
    table.extend(1, 9)
    table.join("w0")
    leaving = WorkerLeaving(worker="w0")
    assert table.tell(leaving) == [("stop", 0, None), ("stop", 1, None)]
    assert table.tell(leaving) == []
    table.ended(0, 3, "stopped")
    table.ended(1, 4, "skipped")
    assert table.saved(0, 3) == []
    assert table.dispatcher.idle_workers == 0
    assert table.join("w1")[0] == ("run", 2, "w1", 3, 4, None), "from what was saved"
    table.tell(WorkerLost(worker="w0"))
    assert list(table.dispatcher.slots) == ["w1"]


def test_dismissing_forgets_attempts_that_never_became_durable() -> None:
    table = two_branches()
    table.extend(1, 9)
    table.join("w0")
    table.progress(0, 2)
    table.dispatcher.dismiss()
    assert table.dispatcher.is_idle
    table.join("w1")
    assert table.extend(1, 9)[0] == ("run", 2, "w1", 0, 4, None)


def test_only_workers_with_what_a_stage_needs_are_used() -> None:
    table = Table(needs=Needs.of({"GPU": 1.0}))
    table.trial(Constant(1.0), 4)
    table.extend(0, 4)
    assert table.join("w0") == []
    joined = WorkerJoined(worker="w1", resources={"GPU": 1.0})
    assert table.tell(joined) == [("run", 0, "w1", 0, 4, None)]
    assert table.tell(joined) == [], "a worker joins once"


def test_a_missing_state_is_made_again() -> None:
    table = two_branches()
    table.extend(1, 9)
    table.join("w0")
    table.saved(0, 4)
    table.ended(0, 4)
    table.ended(1, 9)
    table.saved(1, 9)
    assert table.extend(0, 6) == [("run", 2, "w0", 4, 6, None)]
    assert table.ended(2, 4, "missing") == [("run", 3, "w0", 0, 4, None), ("run", 4, "w0", 4, 6, 3)]


def test_late_missing_message_keeps_a_state_that_was_made_again() -> None:
    table = two_branches()
    table.extend(1, 4)
    table.join("w0")
    table.saved(0, 4)
    table.ended(0, 4)
    assert table.extend(0, 6) == [("run", 1, "w0", 4, 6, None)]
    table.join("w1")
    assert table.extend(1, 9) == [("run", 2, "w1", 4, 9, None)]
    assert table.ended(1, 4, "missing")[0] == ("run", 3, "w0", 0, 4, None)
    table.saved(3, 4)
    assert table.ended(2, 4, "missing") == [("run", 5, "w1", 4, 9, None)], "there is one since"


def test_failed_step_counts_again_when_a_later_state_is_missing() -> None:
    table = two_branches()
    table.extend(0, 6)
    table.extend(1, 9)
    table.join("w0")
    table.saved(0, 4)
    # This one needs the trunk's step 1 again: it parts where no state was kept.
    table.trial(turn(2), 9)
    table.extend(2, 9, priority=1.0)
    table.stop(1)
    table.ended(0, 4)
    assert table.ended(1, 4, "stopped")[0] == ("run", 2, "w0", 0, 2, None)
    table.failed(2, 1)
    assert table.ended(3, 2, "skipped")[0] == ("run", 4, "w0", 0, 2, None)
    assert ("fail", 2, 1, "boom") in table.failed(4, 1)
    assert table.ended(5, 2, "skipped") == [("run", 6, "w0", 4, 6, None)], "its start is there"
    assert table.ended(6, 4, "missing") == [("fail", 0, 1, "boom")]


def test_planned_saves_travel_with_the_stage() -> None:
    dispatcher = Dispatcher(root_key("saves", 0), DispatchOptions(saves=SavePolicy(every=4)))
    dispatcher.register(0, {"lr": turn(6)}, 10)
    dispatcher.extend(0, 10, 0.0, 0.0)
    (run,) = dispatcher.handle(WorkerJoined(worker="w0"), 0.0)
    assert isinstance(run, RunStage)
    assert run.saves == (4, 6, 8)


def test_reports_that_arrive_together_are_each_delivered_once() -> None:
    dispatcher = Dispatcher("root")
    dispatcher.register(0, {"lr": Constant(0.1)}, 8)
    dispatcher.extend(0, 8, 0.0, 0.0)
    (order,) = [
        one
        for one in dispatcher.handle(WorkerJoined(worker="w0"), 0.0)
        if isinstance(one, RunStage)
    ]
    dispatcher.extend(0, 8, 0.0, 0.0, reports=(3, 6))
    for step in (3, 6):
        dispatcher.handle(SaveMissed(attempt=order.attempt, step=step), 0.0)
    reports = tuple((step, {"loss": 1.0 / step}) for step in range(1, 9))
    said = dispatcher.handle(Saved(attempt=order.attempt, step=8, reports=reports), 0.0)
    told = [one.report.step for one in said if isinstance(one, Deliver)]
    assert told == [3, 6, 8]
    assert dispatcher.wanted == {}


def test_taken_stage_is_waited_for_up_to_the_last_request() -> None:
    table = Table()
    table.trial(Constant(0.5), 6)
    table.extend(0, 6)
    table.join("w0")
    table.tell(Taken(attempt="0-a"))
    assert not table.dispatcher.is_idle
    (node,) = table.dispatcher.plan
    reports = ((6, {"loss": 6.0}),)
    assert table.tell(Found(node=node, step=6, reports=reports)) == [("deliver", 0, 6)]
    assert table.dispatcher.is_idle


def test_steps_of_a_found_state_count_as_repeated_if_it_goes() -> None:
    table = Table()
    table.trial(Constant(0.5), 6)
    table.extend(0, 6)
    (node,) = table.dispatcher.plan
    table.tell(Found(node=node, step=2, reports=()))
    table.tell(Evicted(node=node, step=2))
    assert table.join("w0") == [("run", 0, "w0", 0, 6, None)]
    table.progress(0, 6)
    table.ended(0, 6)
    assert table.dispatcher.open.steps_repeated == 2


def test_taken_stage_without_requests_is_not_waited_for() -> None:
    table = Table()
    table.trial(Constant(0.5), 6)
    table.extend(0, 6)
    table.join("w0")
    assert table.stop(0) == [("stop", 0, None)]
    assert table.tell(Taken(attempt="0-a")) == []
    assert table.dispatcher.is_idle


def test_shortened_stage_still_trains_the_steps_before_its_end() -> None:
    table = Table()
    table.trial(Constant(0.5), 9)
    table.extend(0, 9)
    assert table.join("w0") == [("run", 0, "w0", 0, 9, None)]
    table.trial(Constant(0.5), 5)
    table.extend(1, 5)
    table.trial(turn(2), 4)
    assert table.stop(0) == [("stop", 0, 5)]
    # The branch at 2 waits for the stage under way; nothing of it is trained a second time.
    assert table.join("w1") == table.extend(2, 4) == []
    assert table.saved(0, 2, at=()) == [("run", 1, "w1", 2, 4, None)]


def test_trials_have_no_speed_before_the_first_measurement() -> None:
    table = Table()
    table.trial(Constant(0.5), 4)
    assert table.dispatcher.seconds_per_step(0) == 0.0
    table.extend(0, 4)
    table.join("w0")
    table.tell(TrainingEnded(attempt="0-a", step=4, status="trained", seconds=2.0))
    assert table.dispatcher.seconds_per_step(0) == 0.5


# ------------------------------------------------------------------ states not stored


def test_omitted_state_answers_and_is_trained_again() -> None:
    table = Table()
    table.trial(Constant(0.5), 4)
    table.join("w0")
    table.extend(0, 4)
    assert table.omitted(0, 4) == [("deliver", 0, 4)]
    assert table.ended(0, 4) == []
    assert table.dispatcher.is_idle
    (node,) = table.dispatcher.plan
    assert ([*node.checkpoints], node.metrics) == ([], {4: {"loss": 4.0}})
    table.trial(Constant(0.5), 6)
    assert table.extend(1, 6) == [("run", 1, "w0", 0, 4, None), ("run", 2, "w0", 4, 6, 1)]
    table.saved(1, 4)
    table.ended(1, 4)
    assert (table.dispatcher.open.steps_executed, table.dispatcher.open.steps_repeated) == (8, 4)


def test_new_branch_goes_on_in_memory_from_an_omitted_state() -> None:
    table = Table()
    table.trial(Constant(0.5), 4)
    table.join("w0")
    table.extend(0, 4)
    table.trial(Constant(0.5), 6)
    assert table.extend(1, 6) == [("run", 1, "w0", 4, 6, 0)]
    assert table.omitted(0, 4) == [("deliver", 0, 4)]
    assert table.ended(0, 4) == []
    assert table.ended(1, 6, "lost") == [("run", 2, "w0", 0, 4, None), ("run", 3, "w0", 4, 6, 2)]


def test_stage_is_last_where_no_registered_trial_goes_on() -> None:
    dispatcher = Dispatcher(root_key("table", 0), DispatchOptions(saves=PLAIN))
    dispatcher.register(0, {"lr": Constant(0.5)}, 4)
    dispatcher.register(1, {"lr": turn(2)}, 4)
    dispatcher.handle(WorkerJoined(worker="w0"), 0.0)
    orders = [*dispatcher.extend(0, 4, 0.0, 0.0), *dispatcher.extend(1, 4, 0.0, 0.0)]
    runs = [order for order in orders if isinstance(order, RunStage)]
    assert [(run.start, run.stop, run.is_last) for run in runs] == [(0, 2, False), (2, 4, True)]


def test_reports_of_one_state_go_to_the_end_of_the_rows() -> None:
    table = Table()
    table.trial(Constant(0.1), 8)
    table.join("w0")
    table.extend(0, 8)
    table.saved(0, 2, at=[1, 2])
    metrics = table.dispatcher.plan.paths[0].leaf.metrics
    rows = metrics._rows
    table.saved(0, 8, at=range(3, 9))
    assert [*metrics] == [*range(1, 9)]
    assert metrics._rows is rows  # else each report would copy all before it
