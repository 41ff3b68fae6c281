"""What users call: a doctor that comes to a study."""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager

from distributed import Client

from dasktune.cluster.local import local_client
from dasktune.doctor.diagnose import diagnose
from dasktune.doctor.examination import Examination
from dasktune.doctor.findings import Diagnosis
from dasktune.doctor.subject import Subject
from dasktune.errors import ClusterError, ConfigurationError
from dasktune.study.study import Study
from dasktune.worker.gpus import gpus_needed

SECONDS = 30.0
"""How long each check may take on each worker, unless told otherwise."""


def doctor(
    study: Study,
    *,
    client: Client | None = None,
    workers: int | None = None,
    gpus_per_worker: float | None = None,
    seconds: float = SECONDS,
) -> Diagnosis:
    """Return what is wrong with all that a study needs, and what to mend.

    Versions, trainer, store, database, clocks, memory, cores, GPUs and Dask's settings are
    looked at on every worker. Nothing is trained, and nothing stays behind.

    Parameters
    ----------
    study
        The study.
    client
        Connected to the Dask cluster that it will run on; None starts a local one.
    workers, gpus_per_worker
        Of the local cluster, as for `dasktune.Study.optimize`.
    seconds
        How long each check may take on each worker; one that takes longer is named.

    Raises
    ------
    ConfigurationError
        If the study has no trainer, or an argument cannot be.
    ClusterError
        If there is no cluster to look at.

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
    if client is not None and (workers is not None or gpus_per_worker is not None):
        raise ConfigurationError(
            "workers and gpus_per_worker are for a local cluster, not for the one of client"
        )
    subject = Subject.of(study)
    if client is not None:
        return examine(subject, client, seconds=seconds)
    with local_cluster(subject, workers, gpus_per_worker) as own:
        return examine(subject, own, seconds=seconds)


def examine(subject: Subject, client: Client, *, seconds: float = SECONDS) -> Diagnosis:
    """Return what is wrong with all that a study needs on a cluster."""
    if isinstance(seconds, bool) or not (math.isfinite(seconds) and seconds > 0):
        raise ConfigurationError(f"seconds must be a number > 0, got {seconds!r}")
    if client.status != "running":
        raise ClusterError(f"the client must be connected, it is {client.status}")
    began = time.monotonic()
    facts = Examination(client, subject, seconds).facts()
    return Diagnosis(
        study=subject.name,
        workers=len(facts.workers),
        seconds=time.monotonic() - began,
        findings=tuple(diagnose(facts)),
    )


def local_cluster(
    subject: Subject, workers: int | None, gpus_per_worker: float | None
) -> AbstractContextManager[Client]:
    """Return the cluster that a run of the study would start on this host."""
    gpus = gpus_needed(subject.plan.needs, gpus_per_worker)
    return local_client(workers, gpus_per_worker=gpus)
