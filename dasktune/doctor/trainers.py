"""Whether a worker has the same trainer as the driver: its code, and its data.

The functions travel by value to workers that have the same dasktune.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from dasktune.trainer.fingerprint.data import json_digest
from dasktune.trainer.fingerprint.fingerprint import fingerprint
from dasktune.worker.job import JobPlan, open_job


async def open_there(plan: JobPlan, dask_worker: Any = None) -> str:
    """Return why a worker cannot open the trainer; empty if it can."""
    try:
        await asyncio.to_thread(open_job, plan, dask_worker.state.total_resources)
    except Exception as error:  # noqa: BLE001 - a module of the user's may run here
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return ""


async def parts_there(plan: JobPlan, dask_worker: Any = None) -> dict[str, str]:
    """Return what `parts_of` finds on a worker."""

    def find() -> dict[str, str]:
        trainer = open_job(plan, dask_worker.state.total_resources).trainer_class
        return dict(parts_of(plan, trainer))

    return await asyncio.to_thread(find)


def parts_of(plan: JobPlan, trainer: type) -> Mapping[str, str]:
    """Return the parts of a fingerprint that may differ between two hosts.

    Of code that travels by value that is the data alone: the rest is the driver's.
    """
    if plan.code.kind == "import":
        return fingerprint(trainer, plan.config).parts
    describe = getattr(trainer, "fingerprint_data", None)
    return {} if describe is None else {"data": json_digest(describe(plan.config))}
