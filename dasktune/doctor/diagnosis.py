"""The functions that users call: collect the facts of a study, and judge them."""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager

from distributed import Client

from dasktune._driver.run import cluster_of, gpus_per_local_worker
from dasktune._engine.timeouts import CHECK_SECONDS
from dasktune._numbers import real_of
from dasktune._study.study import Study
from dasktune.doctor.checks import diagnose
from dasktune.doctor.collect import Collector
from dasktune.doctor.findings import Diagnosis
from dasktune.doctor.study import CheckedStudy
from dasktune.errors import ClusterError, ConfigurationError


def doctor(
    study: Study,
    *,
    client: Client | None = None,
    workers: int | None = None,
    gpus_per_worker: float | None = None,
    trials_per_gpu: int = 1,
    seconds: float = CHECK_SECONDS,
) -> Diagnosis:
    """Check all that a study needs, and return the findings with what to mend.

    Checks versions, trainer, store, database, clocks, memory, cores, GPUs and Dask's settings
    on every worker. It trains nothing and leaves nothing behind.

    Parameters
    ----------
    study
        The study.
    client
        Connected to the Dask cluster that it will run on; None starts a local one.
    workers, gpus_per_worker, trials_per_gpu
        Of the local cluster, as for `dasktune.Study.optimize`.
    seconds
        Longest time of each check on each worker; a finding names a worker that takes longer.

    Raises
    ------
    ConfigurationError
        If the study has no trainer, or an argument is invalid.
    ClusterError
        If there is no cluster to check.

    Examples
    --------
    >>> import dasktune as dt
    >>> study = dt.create_study(None, name="own", storage="memory://doctor", metric="loss")
    >>> dt.doctor(study)
    Traceback (most recent call last):
    ...
    dasktune.errors.ConfigurationError: study 'own' must have a trainer for this, got None; \
without one it is used with ask and tell
    """
    if not isinstance(study, Study):
        raise ConfigurationError(f"study must be one of create_study, got {study!r}")
    is_local = workers is not None or gpus_per_worker is not None or trials_per_gpu != 1
    if client is not None and is_local:
        raise ConfigurationError(
            "workers, gpus_per_worker and trials_per_gpu are for a local cluster, not for the one "
            "of client"
        )
    checked = CheckedStudy.of(study)
    if client is not None:
        return examine(checked, client, seconds=seconds)
    with local_cluster(checked, workers, gpus_per_worker, trials_per_gpu) as local:
        return examine(checked, local, seconds=seconds)


def examine(checked: CheckedStudy, client: Client, *, seconds: float = CHECK_SECONDS) -> Diagnosis:
    """Return the findings on all that a study needs on a cluster."""
    if not 0 < real_of(seconds) < math.inf:
        raise ConfigurationError(f"seconds must be a number > 0, got {seconds!r}")
    if client.status != "running":
        raise ClusterError(f"the client must be connected, it is {client.status}")
    began = time.monotonic()
    facts = Collector(client, checked, seconds).facts()
    return Diagnosis(
        study=checked.name,
        workers=len(facts.workers),
        seconds=time.monotonic() - began,
        findings=tuple(diagnose(facts)),
    )


def local_cluster(
    checked: CheckedStudy,
    workers: int | str | None,
    gpus_per_worker: float | None,
    trials_per_gpu: int = 1,
) -> AbstractContextManager[Client]:
    """Return the cluster that a run of the study would start on this host."""
    gpus = gpus_per_local_worker(None, gpus_per_worker, trials_per_gpu, checked.plan.needs)
    return cluster_of(None, workers, gpus, trials_per_gpu)
