"""The way of a trial through the plan: the keys of its states, and the stages that made them.

A state key names the same state in all studies of a database. So the stages and checkpoints with
the keys on a trial's path, of any study, are those that the trial rests on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from dasktune._engine.trials import TrialRecord
from dasktune.graph.keys import runs
from dasktune.graph.plan import SearchPlan
from dasktune.storage.database.database import Database
from dasktune.storage.database.rows import CheckpointRow, StageRow
from dasktune.types import Step, TrialState

MOST_STEPS = 2000
"""Most steps of a trial that are looked up one by one; of a longer trial only some are."""

SPARSE = 16
"""If wanted steps are further apart in the mean, it is faster to go from each to the next."""


def last_reported(record: TrialRecord) -> Step:
    """Return the last step whose report counts for a trial: trials may share later states."""
    return record.steps if record.state is TrialState.FAIL else last_step(record)


def last_step(record: TrialRecord) -> Step:
    """Return the last step that a stage of a trial may reach.

    A failed stage may have had to reach the last step of its trial; its key is that of its end.
    """
    if record.state is TrialState.FAIL:
        return record.max_steps
    return max(record.steps, record.until or 0)


def keys_of(plan: SearchPlan, number: int, steps: Sequence[Step]) -> Iterator[tuple[Step, str]]:
    """Yield the state keys of a registered trial at ascending steps."""
    for node in plan.nodes_of(number):
        wanted = steps[bisect_right(steps, node.start) : bisect_right(steps, node.stop)]
        if node.parent is None or not wanted:
            continue
        chain, at = node.parent.chain_at(node.start), node.start
        if wanted[-1] - at > SPARSE * len(wanted):
            for step in wanted:
                chain, at = chain.advance(node.sequences, at, step), step
                yield step, chain.key
            continue
        for until, values in runs(node.sequences, at, wanted[-1]):
            here = wanted[bisect_right(wanted, at) : bisect_right(wanted, until)]
            yield from zip(here, chain.keys(values, [step - at for step in here]), strict=True)
            chain, at = chain.extend(values, until - at), until


def rows_on_path(
    database: Database, plan: SearchPlan, record: TrialRecord, more: Iterable[Step] = ()
) -> tuple[list[StageRow], list[CheckpointRow]]:
    """Return the stages and the checkpoints on a trial's path, of any study, in their order.

    Stages may have ended at `more` steps than the plan, in which the trial is registered, tells.
    """
    last = last_step(record)
    ends = {node.stop for node in plan.nodes_of(record.number)}
    ends |= {at * last // MOST_STEPS for at in range(1, MOST_STEPS + 1)} | {record.steps}
    steps = sorted({step for step in ends if 0 < step <= last}.union(more))
    keys = [key for _, key in keys_of(plan, record.number, steps)]
    stored = sorted(database.checkpoints_at(keys), key=lambda row: row.step)
    stages = database.stages_to(keys, [row.attempt for row in stored])
    return sorted(stages, key=lambda row: (row.start, row.started)), stored
