"""Figures of a study are counts of its plan and of what was measured."""

from __future__ import annotations

from dataclasses import replace

from dasktune._driver.audit_notes import AuditFigures
from dasktune._engine.trials import TrialRecord
from dasktune._results.summary import (
    Summary,
    WithdrawnResults,
    audits_of,
    savings_line,
    steps_beyond,
    summarise,
    trials_on_several_classes,
)
from dasktune.graph.plan import SearchPlan
from dasktune.sequences import Constant, MultiStep
from dasktune.storage.database.rows import StageRow
from dasktune.types import TrialState

RATES = (Constant(0.1), MultiStep(0.1, milestones=[6], gamma=0.1))


def two_trials(*, merge: bool = True) -> tuple[SearchPlan, dict[int, TrialRecord]]:
    """Return two trials of 10 steps that share 6, asked for in full."""
    plan = SearchPlan("root", merge=merge)
    records = {}
    for number, rate in enumerate(RATES):
        plan.register(number, {"lr": rate}, 10)
        records[number] = TrialRecord(
            number=number,
            tuner=0,
            local=number,
            params={},
            sequences={"lr": rate},
            max_steps=10,
            state=TrialState.RUNNING,
            until=10,
        )
    return plan, records


def figures(
    plan: SearchPlan,
    records: dict[int, TrialRecord],
    executed: int,
    repeated: int = 0,
    beyond: int = 0,
) -> Summary:
    return summarise(
        plan,
        records,
        steps_executed=executed,
        steps_repeated=repeated,
        steps_beyond=beyond,
        wall_seconds=1.0,
        worker_seconds=2.0,
        best_value=None,
    )


def test_summary_shared_steps_are_requested_twice_unique_once() -> None:
    found = figures(*two_trials(), executed=0)
    assert (found["steps_requested"], found["steps_unique"]) == (20, 14)
    assert found["merge_rate"] == 20 / 14
    alone = figures(*two_trials(merge=False), executed=0)
    assert (alone["steps_unique"], alone["merge_rate"]) == (20, 1.0)


def test_summary_untrained_steps_are_not_reused() -> None:
    plan, records = two_trials()
    shared = plan.nodes_of(0)[-2]
    shared.checkpoints.add(6)
    assert figures(plan, records, executed=6)["steps_reused"] == 0
    assert figures(plan, records, executed=1)["steps_reused"] == 5


def test_summary_repeated_steps_do_not_hide_reused_steps() -> None:
    plan, records = two_trials()
    for number in records:
        plan.nodes_of(number)[-1].metrics.add(10, {"loss": 1.0})
    found = figures(plan, records, executed=9, repeated=3)
    assert found["steps_reused"] == 14 - (9 - 3)


def test_summary_stopped_trial_counts_requested_steps() -> None:
    plan, records = two_trials()
    records[0].until, records[0].steps, records[0].state = None, 4, TrialState.PRUNED
    found = figures(plan, records, executed=0)
    assert (found["steps_requested"], found["steps_unique"]) == (14, 10)


def test_summary_divides_unique_steps_by_their_devices() -> None:
    plan, records = two_trials()
    assert figures(plan, records, executed=0)["steps_on_devices"] == [{"devices": 1, "steps": 14}]
    records[0].devices = ((0, 1), (8, 4))
    plan.remove(0)
    plan.register(0, records[0].keyed_sequences, 10)
    found = figures(plan, records, executed=14)
    assert found["steps_on_devices"] == [{"devices": 1, "steps": 12}, {"devices": 4, "steps": 2}]
    assert savings_line(found).endswith("; of the different steps 2 on 4 devices together")


def stage(trial: int, start: int, steps: int) -> StageRow:
    return StageRow(
        study_id=1,
        attempt=f"{trial} from {start}",
        key="",
        start=start,
        stop=10,
        worker="a",
        status="trained",
        started=1.0,
        ended=2.0,
        steps=steps,
        repeated=0,
        trials=[trial],
    )


def test_stage_row_counts_the_seconds_of_each_worker() -> None:
    row = stage(0, 0, 10)
    assert replace(row, workers=4).worker_seconds == 4.0
    assert replace(row, workers=4, ended=None).worker_seconds == 0.0


def test_summary_steps_beyond_count_separately() -> None:
    """Both were trained to step 9 before the first was told that it should have ended at 4."""
    plan, records = two_trials()
    records[0].until, records[0].steps, records[0].state = None, 4, TrialState.PRUNED
    stages = [stage(0, 0, 9), stage(1, 6, 3)]
    assert steps_beyond(plan, records, stages) == 3, "the other one shares the first 6"
    assert steps_beyond(plan, records, [*stages, stage(0, 6, 2)]) == 3, "trained once more"
    records[1].until, records[1].steps, records[1].state = None, 5, TrialState.PRUNED
    assert steps_beyond(plan, records, stages) == 4 + 3, "one shared, and 3 of each"


def test_summary_steps_beyond_do_not_hide_reused_steps() -> None:
    plan, records = two_trials()
    for number in records:
        plan.nodes_of(number)[-1].metrics.add(10, {"loss": 1.0})
    found = figures(plan, records, executed=9, beyond=3)
    assert found["steps_reused"] == 14 - (9 - 3)


def test_savings_line_never_exceeds_100_percent() -> None:
    plan, records = two_trials()
    records[0].until, records[0].steps, records[0].state = None, 1, TrialState.PRUNED
    del records[1]
    stages = [stage(0, 0, 4)]
    found = figures(plan, records, executed=4, beyond=steps_beyond(plan, records, stages))
    assert savings_line(found) == (
        "trained 100% of the steps asked for (1 of 1), and 3 more that no result uses: "
        "trials were stopped or failed meanwhile"
    )


def test_summary_text_says_which_steps_were_saved() -> None:
    numbers = Summary(
        trials=2,
        steps_requested=200,
        steps_unique=120,
        steps_executed=82,
        steps_repeated=2,
        steps_beyond=0,
        steps_reused=40,
        steps_audited=18,
        steps_withdrawn=0,
        audits=audits_of(AuditFigures()),
        withdrawn=WithdrawnResults(trials=[], others=0),
        merge_rate=1.6,
        wall_seconds=1.0,
        worker_seconds=1.0,
        best_value=None,
        steps_on_devices=[{"devices": 1, "steps": 120}],
        trials_on_several_classes=[],
    )
    assert savings_line(numbers) == (
        "trained 41% of the steps asked for (82 of 200, 2 repeated, 40 found from other runs)"
    )
    assert savings_line({**numbers, "steps_requested": 0}) == "no trial came to a report"
    assert savings_line({**numbers, "steps_unique": 200}) == (
        "trained 41% of the steps asked for (82 of 200, 2 repeated, 40 found from other runs); "
        "the trials share no steps"
    )
    audited = audits_of(AuditFigures(identical=31, resumes=31))
    assert savings_line({**numbers, "audits": audited}) == (
        "trained 41% of the steps asked for (82 of 200, 2 repeated, 40 found from other runs); "
        "audited 31 resumes: all identical"
    )


def test_trials_that_changed_their_class_are_named() -> None:
    plan, records = two_trials()
    stages = [
        replace(stage(0, 0, 6), kind="old"),  # both trials share these steps
        replace(stage(0, 6, 4), kind="old"),
        replace(stage(1, 6, 2), kind=""),
    ]
    assert trials_on_several_classes(plan, records, stages) == []
    stages.append(replace(stage(1, 8, 2), kind="new"))
    assert trials_on_several_classes(plan, records, stages) == [
        {"trial": 1, "classes": ["new", "old"]}
    ]
    records[1].until, records[1].steps, records[1].state = None, 8, TrialState.PRUNED
    assert trials_on_several_classes(plan, records, stages) == [], "it asked for none of these"
