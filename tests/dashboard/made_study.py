"""Studies written into a database as runs would leave them, without training anything."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from dasktune._driver.history import record_of
from dasktune._engine.trials import TrialRecord
from dasktune._results.rows import registered
from dasktune._results.trial_paths import keys_of
from dasktune.graph.keys import root_key
from dasktune.sequences import MultiStep, as_sequence
from dasktune.space import Choice, Float
from dasktune.storage.database.database import Batch, Database
from dasktune.storage.database.rows import (
    CheckpointRow,
    LogRow,
    MetricRow,
    StageRow,
    StudyRow,
    TrialRow,
)
from dasktune.types import TrialState

BEGAN = 1_800_000_000.0
"""When the first stage of a made study began (epoch seconds)."""

STEP_SECONDS = 0.5
PRINTED = 5
"""Steps at the end of a made stage that printed a line."""

WORKERS = 16
BATCHES = (16, 32, 64, 128)


@dataclass(frozen=True, kw_only=True)
class Made:
    """The sizes of a made study; every `fails_every`-th trial failed, 0 for none."""

    trials: int = 40
    steps: int = 20
    fails_every: int = 0
    running: int = 0
    shared: bool = True


def made_record(number: int, made: Made) -> TrialRecord:
    """Return a trial: its values depend on its number alone."""
    rate = 10 ** (-3 + 2 * ((number * 0.618034) % 1))
    size = BATCHES[number % len(BATCHES)]
    # Trials of a group part at a milestone of their own.
    group = number // 4 if made.shared else number
    start = 10 ** (-3 + 2 * ((group * 0.618034) % 1)) if made.shared else rate
    milestone = max(1, made.steps // 2 + number % 4)
    schedule = MultiStep(start, milestones=[milestone], gamma=0.1)
    failed = bool(made.fails_every) and number % made.fails_every == made.fails_every - 1
    running = number >= made.trials - made.running
    state = TrialState.FAIL if failed else TrialState.COMPLETE
    steps = made.steps // 2 if running else made.steps
    if running:
        state = TrialState.RUNNING
    error = f"ValueError: a rate of {number % 2}.5 is too high"
    trace = (
        'Traceback (most recent call last):\n  File "/home/ann/tune.py", line 12, in train\n'
        '    raise ValueError("too high")\n'
        '  File "/venv/lib/python3.12/site-packages/torch/nn.py", line 3, in call\n'
        f"    return run()\n{error}"
    )
    return TrialRecord(
        number=number,
        tuner=0,
        local=number,
        params={"lr": start, "milestone": milestone, "batch": size},
        sequences={"lr": schedule, "batch": as_sequence(size if not made.shared else 32)},
        max_steps=made.steps,
        state=state,
        until=made.steps if running else None,
        steps=steps,
        values=None if failed else (loss_at(number, steps),),
        message=error if failed else "",
        traceback=trace if failed else "",
        point={"lr": start, "batch": size},
        domains={
            "lr": Float(1e-3, 0.1, log=True).to_json(),
            "batch": Choice(BATCHES).to_json(),
        },
    )


def loss_at(number: int, step: int) -> float:
    """Return the loss that the curve of a trial has at a step."""
    floor = 0.1 + 0.5 * ((number * 0.7548) % 1)
    return floor + math.exp(-step / 7) + 0.01 * math.sin(step * (1 + number % 5))


def make_study(database: Database, name: str, made: Made) -> StudyRow:
    """Write a study with its trials, reports, stages and checkpoints; return its row."""
    spec = {
        "metric": "loss",
        "direction": "minimize",
        "seed": 0,
        "merge": True,
        "fingerprint": f"made {made.shared}",
        "trainer": "Made",
    }
    root = root_key(str(spec["fingerprint"]), 0)
    row = database.create_study(name, root=root, spec=spec, created=BEGAN)
    if row is None:
        raise AssertionError(f"study {name!r} is there already")
    for first in range(0, made.trials, 500):
        numbers = range(first, min(first + 500, made.trials))
        _write(database, row, [made_record(number, made) for number in numbers], made)
    return row


def _write(database: Database, row: StudyRow, records: list[TrialRecord], made: Made) -> None:
    plan = registered(row, records)
    batch = Batch()
    seen: set[str] = set()
    for record in records:
        batch.trials.append(
            TrialRow(
                study_id=row.id,
                number=record.number,
                state=record.state.value,
                steps=record.steps,
                value=record.value,
                record=record.to_json(),
                until=record.until,
            )
        )
        done = record.steps if record.state is not TrialState.FAIL else made.steps // 2
        for step, key in keys_of(plan, record.number, range(1, done + 1)):
            if key not in seen:
                seen.add(key)
                values = {"loss": loss_at(record.number, step), "accuracy": step / (step + 9)}
                batch.metrics.append(MetricRow(key=key, root=row.root, step=step, values=values))
        began = BEGAN + (record.number // WORKERS) * made.steps * STEP_SECONDS
        for node in plan.nodes_of(record.number):
            key = node.key_at(node.stop)
            if node.stop > done or f"stage {key}" in seen:
                continue
            seen.add(f"stage {key}")
            failed = record.state is TrialState.FAIL and node.stop >= done
            attempt = f"{row.id}-{record.number}-{node.start}"
            started, ended = (began + at * STEP_SECONDS for at in (node.start, node.stop))
            batch.stages.append(
                StageRow(
                    study_id=row.id,
                    attempt=attempt,
                    key=key,
                    start=node.start,
                    stop=node.stop,
                    worker=f"tcp://127.0.0.1:{40000 + record.number % WORKERS}",
                    status="failed" if failed else "trained",
                    started=started,
                    ended=ended,
                    steps=node.stop - node.start,
                    repeated=0,
                    trials=[record.number],
                    message=record.message if failed else "",
                )
            )
            text = "\n".join(
                f"step {step}: loss {loss_at(record.number, step):.4f}"
                for step in range(max(node.start, node.stop - PRINTED), node.stop + 1)
            )
            batch.logs.append(LogRow(attempt=attempt, study_id=row.id, text=text))
            batch.checkpoints.append(
                CheckpointRow(
                    key=key,
                    root=row.root,
                    step=node.stop,
                    attempt=attempt,
                    digest="0" * 32,
                    nbytes=1000,
                    seconds=ended - started,
                    created=ended,
                    study_id=row.id,
                )
            )
    database.write(batch)


def made_database(folder: Path, **studies: Made) -> Path:
    """Write a database with studies, and return its file."""
    file = folder / "dasktune.db"
    database = Database(file)
    for name, made in studies.items():
        make_study(database, name, made)
    database.close()
    return file


def first_record(database: Database, row: StudyRow, number: int) -> TrialRecord:
    """Return a trial of a made study as it was written."""
    (found,) = database.some_trials(row.id, [number])
    return record_of(found)
