"""What travels from the driver to every worker, once for a run of a study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dasktune.trainer.code import TrainerCode


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """What a worker needs to know to train stages of one study.

    Parameters
    ----------
    run
        Unique name of this run of the driver; part of every message.
    code
        The user's trainer.
    config, seed, store, report_every
        See `dasktune.worker.Job`.
    needs
        Resources that a stage occupies; with ``GPU`` the trainer is put on one.
    saves_by_time
        Whether workers also save now and then between the planned steps.
    needs_process
        Whether each worker must be a process of its own.
    """

    run: str
    code: TrainerCode
    config: Mapping[str, object]
    seed: int
    store: str
    report_every: int
    needs: Mapping[str, float]
    needs_process: bool = False
    saves_by_time: bool = True
