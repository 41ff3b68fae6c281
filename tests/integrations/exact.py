"""The promise that each framework is held to: resumed and merged trainings are lone ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from distributed import Client, LocalCluster

from dasktune.sequences import as_sequence
from dasktune.storage.codec import decode, encode
from dasktune.trainer.given import as_trainer
from dasktune.trainer.lifecycle import TrainerRun, run_alone
from dasktune.trainer.proof.differences import leaf_digest, leaves


def assert_resumes(trainer: Any, hp: Mapping[str, object], steps: int, **given: Any) -> None:
    """Resume after each step in a new trainer: states and metrics are those of one go."""
    whole = run_alone(trainer, hp, steps, states_at=range(1, steps + 1), **given)
    functions = {name: as_sequence(value) for name, value in hp.items()}
    values = [{name: each(step) for name, each in functions.items()} for step in range(steps)]
    for split in range(1, steps):
        snapshot = encode(whole.states[split])
        run = TrainerRun.resume(
            as_trainer(trainer),
            step=split,
            first_values=values[0],
            last_values=values[split - 1],
            state=decode(snapshot.document, snapshot.data),
            config=given.get("config", {}),
            seed=0,
        )
        assert parts_of(run.state()) == parts_of(whole.states[split]), f"loaded at {split}"
        for step in range(split, min(split + 2, steps)):
            run.advance(values[step])
            assert run.evaluate() == whole.metrics[step + 1], f"{step + 1} after {split}"
            assert parts_of(run.state()) == parts_of(whole.states[step + 1])


def parts_of(state: Any) -> dict[str, str]:
    """Return digests of all parts of a state by path."""
    return {path: leaf_digest(leaf) for path, leaf in leaves(state, "state")}


@contextmanager
def single_thread(trainer: Any) -> Iterator[Client]:
    """Return a client of one worker in this process, which has the generators to itself."""
    # Of its base in dasktune: an attribute of the trainer's own would be a change of its code.
    base = next(kind for kind in trainer.__mro__ if "requires_process" in vars(kind))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "requires_process", False)
        with (
            LocalCluster(
                processes=False,
                n_workers=1,
                threads_per_worker=1,
                dashboard_address="127.0.0.1:0",
            ) as cluster,
            Client(cluster) as client,
        ):
            yield client


def assert_merges(study: Any, tuner: Any, steps: tuple[int, int]) -> None:
    """Run a study: it asks for and trains so many steps, and each trial is a lone one."""
    with single_thread(study.trainer) as client:
        study.optimize(tuner, client=client, check=False, progress=False)
    summary = study.summary()
    assert (summary["steps_requested"], summary["steps_executed"]) == steps
    for trial in study.trials:
        assert trial.state.name in {"COMPLETE", "PRUNED"}, trial.error
        assert trial.metrics == run_alone(study.trainer, trial.sequences, trial.steps).metrics
    study.close()
