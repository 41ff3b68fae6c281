"""All waits of a run: how long its parts wait for each other. Users set five, by `Timeouts`.

How they relate, from the shortest to the longest. The driver's loop turns every `LOOP_SECONDS`
and must go on turning, so a question to one worker may hold it up for a few seconds at most
(`RESULT_SECONDS`); the loop repeats a lost question later.
A life is a multiple of its sign of life. A heartbeat comes every `HEARTBEAT_SECONDS`, and a driver
counts as dead after `NO_HEARTBEAT_SECONDS`. A lease is renewed every `RENEW_SECONDS`, each time
tried for `LEASE_STORE_SECONDS`, and ends after `LEASE_SECONDS`, so two renewals may fail. The store
may be away for longer than a lease lasts (`LEASE_SECONDS` < `STORE_SECONDS`): another driver may
then train the same stage, and the first commit stands. A process that ends waits for its last
writes as long as the store is tried (`STORE_SECONDS` <= `LAST_WRITES_SECONDS`). The waits for
whole services, which users set, are the longest: minutes, because services restart in minutes.

Durations that nobody waits for stand beside their code: spans of measurement, intervals of
drawing, thresholds of warnings, and the ages of states (`dasktune.storage.retention`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from dasktune._numbers import make_plain, real_of
from dasktune.errors import refuse

# ------------------------------------------------------------------------- the driver's loop

LOOP_SECONDS = 0.5
"""Longest time between two turns of the driver's loop: what has no message is noticed then."""

RECORD_FLUSH_SECONDS = 0.1
"""Longest delay of records on which no decision rests: one transaction writes many of them."""

DURABLE_SECONDS = 10.0
"""Time from a stage's end until the driver looks for its commit in the store.

The message of the commit comes from another thread than that of the end, and a large state
is written for seconds; only a lost message takes longer.
"""

MISSED_SECONDS = 1000.0
"""Time from a stage's end after which its last state is trained again if the store has it not.

Its message was lost, and the state was evicted before it was looked for; or saving takes as long.
"""

CANCELLED_SECONDS = 10.0
"""Time from the cancellation of a stage, by somebody else, until the driver takes it for lost.

Its worker saves it at its next step and says so, or is gone: after `client.restart()` within
seconds. After that time a message was lost, or a step takes longer.
"""

RECEIPT_SECONDS = 0.5
"""Time from Dask's word that a stage has finished until its receipt is fetched from the worker.

Its messages say the same, and need no request. They may wait in the worker for `OUTBOX_SECONDS`.
"""

LOOK_UP_SECONDS = 5.0
"""Retries of the store when a thread looks up states whose messages were lost."""

USED_SECONDS = 60.0
"""Time between two writes of the states that were used: ages of states count in hours."""

SPEEDS_SECONDS = 60.0
"""Time between two writes of the measured speeds: a killed driver loses those of so long."""

LIMIT_SAVE_SECONDS = 10.0
"""Time between two saves of the used limits: a killed process forgets at most so much."""

PREDICTION_RETRY_SECONDS = 1.0
"""Time until a question is sent again that a worker did not take."""

PREDICTION_SECONDS = 300.0
"""Longest time of a prediction; after that the prediction counts as impossible."""

# ---------------------------------------------------------------------- scheduler and workers

HOST_CONNECT_SECONDS = 5.0
"""Longest time of a host to accept a connection."""

HELLO_SECONDS = 6.0
"""Longest time of a scheduler to identify itself; it is silent while it imports."""

GUESS_SECONDS = 1.0
"""Longest time of another server to answer, for each protocol that is tried."""

CLIENT_SECONDS = 10.0
"""Longest time of a scheduler to accept a client; it has answered before."""

RECONNECT_SECONDS = 2.0
"""Time limit of each attempt to reach a lost scheduler, so that ctrl-C is noticed soon."""

SCHEDULER_ANSWER_SECONDS = 5.0
"""Longest time of the scheduler to list its workers; the loop waits meanwhile."""

CLAIM_SECONDS = 1.0
"""Time between two claims of a run for its share of the workers."""

UNANSWERED_SECONDS = 60.0
"""A run whose claims the scheduler has not answered for so long uses all workers."""

SILENT_SECONDS = 120.0
"""A run that has claimed nothing for so long has no share any more.

Its driver hangs, or what it said last was lost. If it claims again, it is lent workers again.
"""

WORKERS_SECONDS = 60.0
"""Longest time of a cluster without any worker, at the beginning and later, unless users set it."""

SCALE_SECONDS = 1.0
"""Time between two changes of the size of a cluster that a run scales."""

IDLE_SECONDS = 60.0
"""Time without a stage after which a worker of such a cluster is ended."""

RELEASE_SECONDS = 5.0
"""Longest wait of a run that has ended until the cluster has ended the workers it gives back.

The cluster goes on with it by itself.
"""

FIRST_WORKER_SECONDS = 1.0
"""Time between two looks whether the run was interrupted while it waits for its first worker."""

WORKER_LIST_SECONDS = 5.0
"""Time between two lists of the workers, which make up for lost messages."""

PROBE_SECONDS = 10.0
"""Longest time of a worker to list its packages."""

IMPORT_SECONDS = 60.0
"""Longest time of a worker to import the trainer's code, from a shared disk too."""

SOON_SECONDS = 60.0
"""A new worker pays off for stages that can start within this time."""

SETTLE_SECONDS = 5.0
"""Longest time of workers to answer the messages that are under way when a run ends."""

RESULT_SECONDS = 5.0
"""Longest time of the receipt of a stage whose worker sent no message of its end."""

CLIENT_CLOSE_SECONDS = 2.0
"""Longest time to close a client whose scheduler is gone."""

DRAIN_SECONDS = 60.0
"""Longest time of running stages to end and to be saved when a run is interrupted."""

# ----------------------------------------------------------------------------------- a worker

PROGRESS_FLUSH_SECONDS = 0.05
"""Age of the batches in which progress is sent: fast steps would flood the driver."""

OUTBOX_SECONDS = 0.01
"""Longest time of a message that waits for the next one of its worker: small stages have many."""

LOG_SECONDS = 5.0
"""Time between two messages with the log of a running stage; its end sends it in any case."""

STEP_WATCH_SECONDS = 1.0
"""Time between two checks whether a step has taken too long; a tenth of its limit, if less."""

UNPLANNED_SAVE_SECONDS = 30.0
"""Least time between unplanned saves: it bounds the loss of work, and the number of states."""

LEAVE_SECONDS = 2.0
"""Time without a stage after which a worker that leaves closes: its messages have arrived."""

NANNY_SECONDS = 6.0
"""Time to save on SIGTERM unless a variable sets it: Dask's nanny kills after about 8 s."""

LAST_WRITES_SECONDS = 120.0
"""Longest wait of a process that ends itself until the store has its states."""

LAST_MESSAGES_SECONDS = 0.3
"""Wait of a process that ends itself until its last messages are on their way."""

RANK_START_SECONDS = 120.0
"""Longest time of another process of a divided training to start and to import torch."""

RANK_END_SECONDS = 1.0
"""Time of such a process to end after it has closed its connections."""

RANK_SECONDS = 600.0
"""Longest wait of the processes of a divided training for each other.

They make the same calls, so they are seconds apart at most; the first one evaluates alone.
"""

LOST_INTERRUPT_SECONDS = 0.05
"""When an interrupt is sent again that Python dropped in a garbage collection."""

INTERRUPT_AGAIN_SECONDS = 1.0
"""Time between two interrupts of a divided training that has lost a process, until it has failed.

It may begin to wait for the lost process only after the first interrupt.
"""

LENT_LOOK_SECONDS = 0.05
"""Time between two looks of a worker that ends whether the processes that it has lent rest."""

# ------------------------------------------------------------------------- store and leases

STORE_SECONDS = 120.0
"""Retries of a request to the store before its failure is an error."""

REMOVAL_MARK_SECONDS = 600.0
"""Age at which the mark of a removal is of a dead process: longer than a removal's retries."""

STORE_CHECK_SECONDS = 10.0
"""Retries on opening a store: an address that is wrong should be reported soon."""

LISTING_REQUEST_SECONDS = 600.0
"""Time limit of a listing: 1,000,000 names are 1,000 pages, one after another."""

STORE_LISTING_SECONDS = (5.0, 60.0)
"""Age at which an evicting driver lists the store again: the first if much was written."""

RESULTS_LISTING_SECONDS = 30.0
"""Age at which a reader of results lists the store again."""

FORGET_SECONDS = 2.0
"""Age of a removal when its row goes from the database.

The recorder has written its rows of the same state by then.
"""

LEASE_SECONDS = 60.0
"""Life of a lease that is not renewed."""

RENEW_SECONDS = 15.0
"""Time between two renewals."""

LEASE_STORE_SECONDS = 10.0
"""Retries of a lease: training goes on without a lease that cannot be written soon."""

LEASE_POLL_SECONDS = (0.1, 5.0)
"""Least and longest time between two listings of the other drivers."""

LEASE_MEET_SECONDS = 6.0
"""Longest wait of a new driver until the others see it: a little more than their longest poll."""

LEASE_LIMIT_SECONDS = 600.0
"""A lease with a later end is invalid: ten times the life of any lease, for clocks that differ."""

STALE_SECONDS = 86_400.0
"""Age at which the files of drivers that have ended are removed."""

# ------------------------------------------------------------------------------- the database

DATABASE_SECONDS = 60.0
"""Retries when a server that has answered before is lost; runs use `Timeouts` instead."""

DATABASE_CONNECT_SECONDS = 5
"""Longest time of a server to answer, unless the URL sets another time."""

DATABASE_IDLE_SECONDS = 60
"""Longest idle time of a transaction; dasktune never pauses inside a transaction."""

DATABASE_SILENT_SECONDS = 60
"""Time without any packet after which a server counts as gone."""

SQLITE_SECONDS = 30.0
"""Longest wait for another process that writes to the same SQLite file."""

LOGGER_SECONDS = 2.0
"""Shortest time between two writes to a logger: users look at it, no decision does."""

# ------------------------------------------------------------------------ the status of a run

HEARTBEAT_SECONDS = 5.0
"""Time between two heartbeats."""

NO_HEARTBEAT_SECONDS = 60.0
"""Time without a heartbeat after which a driver counts as dead, and its gauges are dropped."""

PROMETHEUS_SECONDS = 5.0
"""Longest time of the scheduler to take the figures; no decision rests on them."""

LATE_SECONDS = 30.0
"""Time of a worker to begin a stage after which the status names the worker."""

SLOW_STORE_SECONDS = 10.0
"""Time of the store to answer after which the status names the store."""

# --------------------------------------------------------------- the resume check of a study

FIRST_CHECK_SECONDS = 30.0
"""Most work of the check by itself in processor time, unless 1% of the steps take longer."""

FIRST_CHECK_WAITING = 10.0
"""A check that waits for processors, or anything else, may take so many times as long."""

FIRST_CHECK_LAST_SECONDS = 20.0
"""Time after which this check begins no step: the last one has time to end, and to be compared."""

FIRST_CHECK_FILES_SECONDS = 10.0
"""Longest time for which a run that has ended waits for the first step of its check."""

FIRST_CHECK_STEP_SECONDS = 120.0
"""Longest time of one of the steps that belong to the 1%; a longer one seems to hang."""

FIRST_CHECK_LOOK_SECONDS = 0.1
"""Time between two looks at the process of this check, and whether it is to end."""

INTERRUPT_LOOK_SECONDS = 0.5
"""Time after which a wait for a training function looks for an interrupt that came as it began."""

STOP_AGAIN_SECONDS = 0.2
"""Time between two requests to stop, of a cancelled task."""

PARENT_LOOK_SECONDS = 1.0
"""Time between two looks of this process whether the one that started it is gone."""

# --------------------------------------------------------------------------- checks by doctor

CHECK_SECONDS = 30.0
"""Default time limit of each check on each worker."""

CHECK_GRACE_SECONDS = 5.0
"""Added to this limit until the client itself gives up."""

CHECK_DATABASE_SECONDS = 5.0
"""Longest wait of a check for another process that writes to the same SQLite file."""

# -------------------------------------------------------------------------------------- SLURM

SLURM_COMMAND_SECONDS = 60.0
"""Longest time of a command of SLURM; the study goes on without its answer."""

JOB_LIST_SECONDS = 2.0
"""Time between two queries of the jobs' states."""

RESUBMIT_SECONDS = 30.0
"""Pause of submissions after SLURM refused a job, or jobs ended at once."""

OTHER_NODE_SECONDS = 600.0
"""Time after a pool's last new worker until it is asked for one of another numeric class.

The stages that need the class cannot go on without it, but each try costs a place in SLURM's queue
and an idle worker.
"""

RELAUNCH_SECONDS = 120.0
"""A worker that dies after this time is started again.

It is longer than the time that a worker waits for its scheduler: without a scheduler the job
ends.
"""

BACKSTOP_SECONDS = 20
"""Time before its walltime at which a worker is closed even if it is still saving."""

KILL_MARGIN_SECONDS = 5.0
"""Time before SLURM kills a job at which its workers stop saving."""


PAGE_IDLE_SECONDS = 30.0
"""For how long a connection to the live page may send nothing, or its headers only in part."""

PAGE_BODY_SECONDS = 10.0
"""The longest time in which the body of a request to the live page must come."""

PAGE_END_SECONDS = 5.0
"""Time for the server of a live page to end before it is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """The times in seconds after which a driver acts by the clock; no result depends on them.

    Parameters
    ----------
    heartbeat_seconds, save_seconds, used_seconds, lease_seconds, renew_seconds, idle_seconds
        As the constants of these names say.
    heartbeat_share
        Part of the loop's time that heartbeats may take; they come less often if they take longer.
    look_seconds
        As `WORKER_LIST_SECONDS`.
    listing_seconds
        As `RESULTS_LISTING_SECONDS`.
    """

    heartbeat_seconds: float = HEARTBEAT_SECONDS
    heartbeat_share: float = 0.02
    look_seconds: float = WORKER_LIST_SECONDS
    listing_seconds: float = RESULTS_LISTING_SECONDS
    save_seconds: float = LIMIT_SAVE_SECONDS
    used_seconds: float = USED_SECONDS
    lease_seconds: float = LEASE_SECONDS
    renew_seconds: float = RENEW_SECONDS
    idle_seconds: float = IDLE_SECONDS


WAITS = Waits()
"""The waits of a driver that is given no others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """The seconds that parts of a run may stay silent before the driver reacts.

    Parameters
    ----------
    step_seconds
        Longest time that one step may take with its evaluation, and so may building a trainer
        or loading its state. A worker on which it takes longer is replaced; the stage is tried
        once more elsewhere, then its trials fail, with where the step was. None is no limit.
    silence_seconds
        A worker that has not been heard of for so long is taken for lost: its stage starts
        elsewhere. One that wakes up later does no harm, and is used again. Code that keeps
        Python's global lock for longer silences its worker, too.
    workers_seconds
        Longest time that a run waits for its first worker. On a cluster of fixed size, also the
        longest time without any worker later. None is 60 s; for a cluster that the run itself asks
        for workers, such as one with ``workers="0-16"`` or jobs of SLURM, None is no limit. Later
        a run waits for such a cluster until it cannot start any worker.
    scheduler_seconds
        Longest time that the driver waits for a lost scheduler, and then for its first worker.
    database_seconds
        Longest time that the driver waits for a database that has answered before.
    waits
        The times after which the driver acts by the clock alone; the defaults suit every study.

    Raises
    ------
    ConfigurationError
        If one is not a number of seconds > 0: all problems at once.
    """

    step_seconds: float | None = None
    silence_seconds: float = 45.0
    workers_seconds: float | None = None
    scheduler_seconds: float = 300.0
    database_seconds: float = 300.0
    waits: Waits = WAITS

    def __post_init__(self) -> None:
        refuse(
            f"Timeouts: {timeout.name} must be a number of seconds > 0, got {value!r}"
            for timeout in fields(self)
            if timeout.name != "waits"
            and not 0 < real_of(value := getattr(self, timeout.name)) < math.inf
            and not (timeout.name in ("step_seconds", "workers_seconds") and value is None)
        )
        make_plain(self, *(timeout.name for timeout in fields(self)))

    def patience(self, *, asks: bool) -> float:
        """Return the seconds to wait for a worker: of a cluster that is asked for it, or not."""
        default = math.inf if asks else WORKERS_SECONDS
        return default if self.workers_seconds is None else self.workers_seconds
