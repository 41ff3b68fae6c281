"""One run of a study: the parts of the driver that it needs, wired together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dasktune._cluster.pools import worker_bounds
from dasktune._driver.audit_notes import AuditFailure, counts_of
from dasktune._driver.history import History, TunerPlace
from dasktune._driver.numerics import NumericClasses, NumericRule
from dasktune._driver.recorder import Recorder
from dasktune._driver.retention.evict import Evictor
from dasktune._driver.reuse import KnownStates
from dasktune._driver.speed_keeper import SpeedKeeper
from dasktune._driver.transfer import GivenTrials
from dasktune._engine.engine import Engine
from dasktune._engine.limits import Meter
from dasktune._engine.outcome import Outcome
from dasktune._engine.timeouts import IDLE_SECONDS, Timeouts
from dasktune._engine.trials import TrialRecord
from dasktune._worker.gpus import gpus_needed, sharing_problems
from dasktune._worker.job import JobPlan
from dasktune.algos.base import Tuner
from dasktune.errors import ConfigurationError, refuse
from dasktune.graph.audits import AuditDraw
from dasktune.needs import Needs
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.database.database import Database
from dasktune.storage.retention import Keep, Retention
from dasktune.trainer.check_resume.verdict import device_of
from dasktune.types import Objective, TrialState, Value

if TYPE_CHECKING:
    from distributed import Client

    from dasktune._driver.audits import Audits
    from dasktune._driver.parts import RunCheck
    from dasktune._driver.runner import DaskRunner, RunSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditTerms:
    """The audits that a run shall have."""

    share: float
    """Share of the resumed stages that are audited."""
    fail: Callable[[AuditFailure], None]
    """Records that the trainer does not resume exactly, for all studies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRun:
    """A run of a tuner in an open study."""

    study: str
    study_id: int
    """The study's name, and its number in the database."""
    owner: str | None
    """Names the study among all that use its store; None if its trials share nothing."""
    database: Database
    store: CheckpointStore
    history: History
    """What the study has stored."""
    place: TunerPlace
    """The tuner's place in the study."""
    inputs: Mapping[str, object]
    """What a new tuner begins with; see `inputs_of`."""
    known_states: KnownStates
    """The states that the engine's plan is filled from."""
    plan: JobPlan
    """What workers need to know; it names the run."""
    engine: Engine
    recorder: Recorder
    meter: Meter
    timeouts: Timeouts
    """As for `dasktune._driver.runner.DaskRunner`."""
    audits: AuditTerms | None
    """What is audited, and what becomes of it; None without audits."""
    retention: Retention | None
    """The budget of the store; None without one."""
    keep: Keep
    """The trials whose last states stay, and are stored whatever that costs."""
    kept_elsewhere: Callable[[], frozenset[str]]
    """Returns the keys of the states that other studies of the database keep."""
    weight: float
    """See `dasktune.graph.fair_shares.Claim`."""
    keeper: SpeedKeeper
    """Keeps what the run measures."""
    numerics: NumericRule | None
    """How workers are told apart by their numeric classes; None takes all for one."""

    @contextmanager
    def runner(
        self,
        client: Client,
        *,
        on_turn: Callable[[RunSnapshot], None] | None,
        on_safe: Callable[[Outcome], None],
        check: RunCheck,
    ) -> Iterator[DaskRunner]:
        """Give the runner that carries the run out; the heartbeat goes on meanwhile."""
        # Imported late: `import dasktune` must not wait for Dask.
        from dasktune._driver.heartbeat import Heartbeat
        from dasktune._driver.runner import DaskRunner

        self.database.connections.patience = self.timeouts.database_seconds
        with Heartbeat(
            self.database,
            study_id=self.study_id,
            study=self.study,
            run=self.plan.run,
            engine=self.engine,
            recorder=self.recorder,
            client=client,
            waits=self.timeouts.waits,
            keeper=self.keeper,
        ) as heartbeat:
            yield DaskRunner(
                client,
                self.engine,
                self.plan,
                self.recorder,
                known_states=self.known_states,
                study=self.owner,
                evictor=self._evictor(),
                meter=self.meter,
                timeouts=self.timeouts,
                on_turn=on_turn,
                on_safe=on_safe,
                check=check,
                heartbeat=heartbeat,
                audits=self._audits(),
                weight=self.weight,
                classes=NumericClasses(self.numerics, self.store),
                keep=self.keep,
            )
            heartbeat.ending = self._ending()

    def begin(self, now: float, capacity: int) -> Outcome:
        """Begin the tuner, or continue it."""
        return begin_tuner(self.engine, self.place, self.inputs, now, capacity)

    def _ending(self) -> tuple[str, str]:
        """Return why a run that raised no exception ended: its status, and the limit or reason."""
        place = self.history.place_of(self.place.tuner)
        if place.has_ended:
            return "ended", place.ending
        limit = self.meter.reached()
        is_stopped = limit is None or self.meter.stopped_by is not None
        return ("interrupted", limit or "") if is_stopped else ("limit", str(limit))

    def _audits(self) -> Audits | None:
        """Return the audits of this run; a study goes on counting where its last run ended."""
        from dasktune._driver.audits import Audits

        terms = self.audits
        if terms is None:
            return None
        notes = self.history.notes("run")
        trained = sum({note["run"]: note["steps"] for note in notes}.values())
        return Audits(
            AuditDraw(terms.share, trained=trained, counts=counts_of(self.history)),
            self.engine.view,
            run=self.plan.run,
            trainer=self.plan.code.qualname,
            seed=self.plan.seed,
            note=self.history.note,
            fail=terms.fail,
        )

    def _evictor(self) -> Evictor | None:
        if self.retention is None:
            return None
        return Evictor(
            self.store,
            self.database,
            self.retention,
            view=self.engine.view,
            trials=self.engine.trials,
            objective=self.engine.objective,
            kept_elsewhere=self.kept_elsewhere,
            write_down=self.recorder.flush,
        )


def begin_tuner(
    engine: Engine, place: TunerPlace, inputs: Mapping[str, object], now: float, capacity: int
) -> Outcome:
    """Begin a tuner, or continue it if it has records in its place.

    A new tuner begins with `inputs` (see `inputs_of`), and with so many workers.
    """
    tuner, number = place.tuner, place.number
    if place.records:
        return engine.resume(
            tuner,
            place=number,
            records=place.records,
            now=now,
            widen=place.widen,
            retry=place.retry,
            retrain=place.retrain,
        )
    return engine.begin(tuner, place=number, capacity=capacity, now=now, inputs=dict(inputs))


def inputs_of(
    tuner: Tuner,
    objective: Objective,
    trials: Iterable[TrialRecord],
    queued: Iterable[Mapping[str, Value]],
    given: Iterable[GivenTrials] = (),
) -> dict[str, object]:
    """Return the inputs that a new tuner of a study begins with.

    These are points that users queued, and earlier trials: the study's and, for a sampler that
    learns from them, those given of other studies.
    """
    inputs: dict[str, object] = {"objectives": len(objective.metrics)}
    if points := list(queued)[: tuner.most_queued]:
        inputs["queued"] = points
    if tuner.learns:
        others = list(given)
        if others:
            inputs["given"] = {other.study: len(other.trials) for other in others}
        inputs["earlier"] = [
            {
                "point": dict(trial.point or trial.params),
                "step": trial.steps,
                "losses": list(objective.losses(trial.metrics(objective))),
            }
            for trial in (*chain.from_iterable(each.trials for each in others), *trials)
            if trial.values is not None and trial.state is not TrialState.FAIL
        ]
    return inputs


@contextmanager
def cluster_of(
    client: Client | None,
    workers: int | str | None,
    gpus_per_worker: float,
    trials_per_gpu: int = 1,
    *,
    idle_seconds: float = IDLE_SECONDS,
    dashboard: bool = False,
) -> Iterator[Client]:
    """Give a client: of the user's cluster, or of a local one that is started meanwhile.

    A local cluster has as many workers as fit on this host if None are given, with so many GPUs
    each (see `gpus_per_local_worker`). Runs scale a cluster with a range of workers, and one of the
    user's with a number, too. Nobody knows the address of Dask's `dashboard` of a local cluster,
    unless the caller tells: its import takes half a second.
    """
    from dasktune._cluster.growing import growing
    from dasktune._cluster.local import local_client
    from dasktune._cluster.workers import own_client

    bounds = worker_bounds(workers)
    is_range = bounds is not None and bounds[0] < bounds[1]
    size: Any = workers if bounds is None else max(1, bounds[0])
    if client is not None:
        context = own_client(client)
    elif is_range and gpus_per_worker:
        raise ConfigurationError(
            f"workers must be a number where the workers of this host have GPUs, got {workers!r}"
        )
    else:
        context = local_client(
            size,
            gpus_per_worker=gpus_per_worker,
            trials_per_gpu=trials_per_gpu,
            dashboard=dashboard,
        )
    asked = workers if is_range or client is not None else None
    with (
        context as connected,
        growing(connected, asked, releases=client is not None, idle_seconds=idle_seconds),
    ):
        yield connected


def gpus_per_local_worker(
    client: Client | None, gpus_per_worker: float | None, trials_per_gpu: int, needs: Needs
) -> float:
    """Return how many GPUs each local worker gets, before anything is started.

    Raises a `ConfigurationError` if GPUs are asked for in the cluster of a client, which has its
    own; or several trials are to share GPUs of which each worker has not exactly one.
    """
    if client is None:
        shares = trials_per_gpu != 1 and gpus_per_worker is None
        gpus = gpus_needed(needs, 1 if shares else gpus_per_worker)
        refuse(sharing_problems(trials_per_gpu, gpus))
        return gpus
    given = ["gpus_per_worker"] if gpus_per_worker is not None else []
    given += ["trials_per_gpu"] if trials_per_gpu != 1 else []
    refuse(f"{name} is for a local cluster, not for the one of client" for name in given)
    return 0


def device_of_run(client: Client | None, gpus_per_worker: float, needs: Needs) -> str:
    """Return the kind of device on which a run trains, as far as that is known before it.

    Stages use the GPU of their worker, whether they need one or not. Without a client a local
    cluster will be started, with so many GPUs for each worker.
    """
    has_gpus = gpus_per_worker > 0
    if client is not None and client.status == "running":
        try:
            workers = client.scheduler_info(n_workers=-1)["workers"].values()
        except (OSError, ValueError):  # the run itself notices that the scheduler is gone
            workers = ()
        has_gpus = any((worker.get("resources") or {}).get("GPU", 0) > 0 for worker in workers)
    return "cuda" if has_gpus else device_of(needs)


def seen_by_workers(url: str) -> str:
    """Return a store's URL as workers need it: they run in folders of their own."""
    return url if "://" in url else str(Path(url).expanduser().absolute())
