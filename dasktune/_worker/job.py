"""The job of a run and the stages of it, as the driver sends them to workers."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any
from uuid import uuid4

from dasktune._worker.gpus import has_gpus_of_its_own, sees_too_many
from dasktune._worker.shared_device import shares_device
from dasktune.errors import ClusterError, refuse
from dasktune.graph.keys import Chain
from dasktune.needs import Needs
from dasktune.trainer.code import TrainerCode, unpack
from dasktune.trainer.environment import NUMERICS, environment
from dasktune.types import Metrics, Step

_INTERPRETER = uuid4().hex


def this_process() -> str:
    """Return the name of this process among those of all hosts.

    Numbers of processes repeat on other hosts, and a fork has the memory of its parent.
    """
    return f"{_INTERPRETER}-{os.getpid()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """The job of one study as the driver sends it to each worker.

    Parameters
    ----------
    run
        Unique name of this run of the driver; part of every message.
    config, store, report_every
        See `Job`.
    seed
        The study's; repeats of a configuration add to it.
    saves_by_time
        Whether workers also save now and then between the planned steps.
    proves
        Whether each resume must prove itself.
    is_apart
        Whether trials share nothing, not even a data set that a worker keeps.
    is_exact
        Whether all workers must have the same versions, down to the patch number.
    needs_process
        Whether each worker must be a process of its own.
    step_seconds
        Longest time that a step may take; None is no limit.
    driver
        The driver's process, as `this_process` names it.
    fingerprint, code_folder
        See `Job`.
    """

    run: str
    code: TrainerCode
    config: Mapping[str, object]
    seed: int
    store: str
    report_every: int
    needs: Needs
    needs_process: bool = False
    saves_by_time: bool = True
    proves: bool = True
    is_apart: bool = False
    is_exact: bool = False
    step_seconds: float | None = None
    driver: str = ""
    fingerprint: str = ""
    code_folder: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The part that all stages of a study have in common."""

    trainer_class: type
    """The user's trainer."""
    config: Mapping[str, object]
    device: str
    """What it is built with."""
    store: str
    """URL of the checkpoint store."""
    report_every: int
    """Evaluate after every so many steps."""
    saves_by_time: bool = True
    """Whether to save now and then between the planned steps."""
    proves: bool = True
    is_apart: bool = False
    """See `JobPlan`."""
    is_own_process: bool = False
    """Whether this process is no other's, such as that of the driver: then its settings may be set
    back before a trainer is built."""
    shares_device: bool = False
    """Whether this worker shares its device with others: then its memory is measured."""
    environment: Mapping[str, object] = field(default_factory=dict)
    """What is recorded with each checkpoint."""
    code: TrainerCode | None = None
    """The trainer as the driver sent it, for other processes; None if it was not sent."""
    gpu: str = ""
    """Unique name of the GPU that it trains on; empty if the name is not known, or if it trains on
    the CPU."""
    fingerprint: str = ""
    """The trainer's, whose verdict knows the files that its code reads; empty for no comparison."""
    code_folder: str | None = None
    """The folder of the trainer's code on the driver's machine, from which their paths start."""

    @property
    def numerics(self) -> str:
        """The name of the numeric class on which it trains; empty if it is not known."""
        return str(self.environment.get(NUMERICS, ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """One stage to train: plain data, as it travels."""

    attempt: str
    """Id of the attempt."""
    start: Step
    stop: Step
    """Steps."""
    saves: tuple[Step, ...]
    """Steps strictly between at which the state is saved."""
    sequences: Mapping[str, Mapping[str, object]]
    """JSON documents of the hyper-parameters by name."""
    chain: tuple[str, str, int]
    """Position in the chain of keys at `start`: base, values (hex), length."""
    seed: int
    """Seed of the training."""
    is_alone: bool = False
    """Whether its trial is trained alone, always from step 0: its states replace those of earlier
    attempts that differ."""
    lenders: tuple[str, ...] = ()
    """Addresses of the workers that train with this one, one device each; empty if this worker has
    all devices."""
    omits: tuple[str, float, float] | None = None
    """Lets the state at `stop` be left out of the store if that costs more than to train it again:
    a metric, and the least and the greatest value of it with which no rule keeps the state. A value
    that is not finite is never kept. None: it is stored in any case."""
    files_known: int = 1
    """Version of the driver's list of files that the trainer reads: a worker with an older one
    reads the verdicts again."""

    @property
    def key(self) -> str:
        """The key of the state at `start`."""
        base, values, length = self.chain
        return Chain(base, bytes.fromhex(values), length).key

    def to_wire(self) -> dict[str, object]:
        """Return the fields as plain data, which a scheduler may unpickle."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    def pack(self) -> bytes:
        """Return it as bytes, which Dask carries without a look into them."""
        return pickle.dumps(self.to_wire())

    @classmethod
    def unpack(cls, content: bytes) -> StageSpec:
        """Return the stage that `pack` packed."""
        return cls(**pickle.loads(content))


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSpec:
    """One audit: steps to train again, and what must come out; plain data, as it travels."""

    stage: StageSpec
    """The steps, from a stored state or from step 0; its attempt is the name of the audit."""
    metrics: Mapping[Step, Metrics]
    """The metrics that are stored, by step."""
    states: Mapping[Step, str]
    """The keys of the states that are stored, by step."""
    origins: Mapping[Step, str] = field(default_factory=dict)
    """If something differs: the keys of the states, by step, from which this worker trains once
    without a stop."""
    splits: tuple[Step, ...] = ()
    """The steps at which it then resumes, to compare."""
    measured: tuple[Step, ...] = ()
    """Steps before the first one at which the study evaluated."""

    def to_wire(self) -> dict[str, object]:
        """Return it as plain data, which a scheduler may unpickle."""
        metrics = [(step, dict(values)) for step, values in self.metrics.items()]
        return {
            "stage": self.stage.to_wire(),
            "metrics": metrics,
            "states": list(self.states.items()),
            "origins": list(self.origins.items()),
            "splits": self.splits,
            "measured": self.measured,
        }

    @classmethod
    def from_wire(cls, content: Mapping[str, Any]) -> AuditSpec:
        """Return the audit that plain data describe."""
        return cls(
            stage=StageSpec(**content["stage"]),
            metrics=dict(content["metrics"]),
            states=dict(content["states"]),
            origins=dict(content["origins"]),
            splits=tuple(content["splits"]),
            measured=tuple(content["measured"]),
        )


def open_job(
    plan: JobPlan,
    resources: Mapping[str, float],
    *,
    describe: Callable[[str], Mapping[str, object]] = environment,
) -> Job:
    """Return the job of a plan: its trainer's code opened, this process ready for it.

    With a ``GPU`` among the worker's resources the trainer is put there, and on a worker of
    dask-cuda in any case. `describe` returns what may change results on a device, for the commits
    of states. Raises a `ClusterError` if the code cannot be opened here, a GPU is needed and none
    can be used, or torch would use the GPU of another worker.
    """
    from dasktune._worker.hardware import hardware_of, label_problems, numerics_of  # it loads Dask

    trainer_class = unpack(plan.code)
    device = "cuda" if resources.get("GPU", 0) > 0 or has_gpus_of_its_own() else "cpu"
    torch = sys.modules.get("torch")
    if device == "cuda" and torch is not None and not torch.cuda.is_available():
        if plan.needs.least("GPU") > 0:
            raise ClusterError("stages need a GPU, and torch finds none in this process")
        device = "cpu"
    if device == "cuda" and sees_too_many(torch):
        raise ClusterError(
            "torch used CUDA here before the worker was given its GPUs: the script must do so "
            "only under `if __name__ == '__main__':`, because each worker process reads it, too"
        )
    hardware = hardware_of(resources)
    refuse(label_problems(hardware, resources))
    if device == "cpu":  # also on a worker with a GPU that torch cannot use
        hardware = replace(hardware, gpu=None, gpus=0.0)
    return Job(
        trainer_class=trainer_class,
        config=plan.config,
        device=device,
        store=plan.store,
        report_every=plan.report_every,
        saves_by_time=plan.saves_by_time,
        proves=plan.proves,
        is_apart=plan.is_apart,
        is_own_process=plan.driver != this_process(),
        environment={**describe(device), NUMERICS: numerics_of(hardware)},
        shares_device=shares_device(),
        code=plan.code,
        gpu="" if hardware.gpu is None else hardware.gpu.uuid,
        fingerprint=plan.fingerprint,
        code_folder=plan.code_folder,
    )
