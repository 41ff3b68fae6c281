"""The new processes in which `check_resume` trains.

Each receives one job on its standard input and writes its findings into the job's folder. A
failure ends the process with a traceback and an exit code.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dasktune.errors import TrainerError
from dasktune.storage.codec import decode, encode
from dasktune.trainer.check_resume.differences import leaf_digest, leaves
from dasktune.trainer.check_resume.probe import generator_digests, probe
from dasktune.trainer.code import TrainerCode, unpack
from dasktune.trainer.lifecycle import TrainerRun
from dasktune.types import Step, Value

Digests = dict[str, str]
_COMMAND = "from dasktune.trainer.check_resume.new_process import main; main()"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckJob:
    """The job of one process.

    Parameters
    ----------
    part
        ``whole``: train all steps in one go and save at `split`; ``rest``: load the saved
        state and train the remaining steps.
    values
        Hyper-parameters at every step.
    folder
        The folder for exchanging files.
    """

    part: Literal["whole", "rest"]
    code: TrainerCode
    values: Sequence[Mapping[str, Value]]
    split: Step
    config: Mapping[str, object]
    seed: int
    device: str
    folder: str


def run_in_new_process(
    job: CheckJob, *, execute: Callable[..., subprocess.CompletedProcess[bytes]] | None = None
) -> dict[str, Any]:
    """Run a job in a new process, started by `subprocess.run`, and return its findings.

    Raises
    ------
    TrainerError
        If the trainer failed; the error holds the traceback of the process.
    """
    execute = subprocess.run if execute is None else execute
    done = execute(
        [sys.executable, "-c", _COMMAND], input=pickle.dumps(job), capture_output=True, check=False
    )
    if done.returncode != 0:
        text = done.stderr.decode(errors="replace").strip()
        lines = text.splitlines()
        message = lines[-1] if lines else f"the process ended with code {done.returncode}"
        traceback = text[max(text.find("Traceback (most recent"), 0) :]
        raise TrainerError(f"{job.code.qualname} failed in check_resume: {message}", traceback)
    findings: dict[str, Any] = load(job.folder, job.part)
    return findings


def save(state: object, folder: str, name: str) -> None:
    """Write a state into two files, encoded as in a checkpoint."""
    snapshot = encode(state)
    Path(folder, f"{name}.json").write_text(json.dumps(snapshot.document))
    Path(folder, f"{name}.bin").write_bytes(snapshot.data.tobytes())


def load(folder: str, name: str) -> Any:
    """Return the state that `save` wrote."""
    document = json.loads(Path(folder, f"{name}.json").read_text())
    data = np.frombuffer(Path(folder, f"{name}.bin").read_bytes(), np.uint8)
    return decode(document, data)


def main() -> None:
    """Run the job on standard input; only the parent process writes there."""
    job: CheckJob = pickle.load(sys.stdin.buffer)
    trainer_class = unpack(job.code)
    findings = _whole(job, trainer_class) if job.part == "whole" else _rest(job, trainer_class)
    save(findings, job.folder, job.part)


def _whole(job: CheckJob, trainer_class: type) -> dict[str, Any]:
    run = TrainerRun.start(
        trainer_class, job.values[0], config=job.config, seed=job.seed, device=job.device
    )
    log = _Log()
    before = generator_digests(job.device)
    findings: dict[str, Any] = {}
    for values in job.values:
        run.advance(values)
        log.add(run, with_state=run.step >= job.split)
        if run.step == job.split:
            save(run.state(), job.folder, "saved")
            findings["probe"] = _probe(run)
    after = generator_digests(job.device)
    drawn = [path for path, digest in after.items() if before.get(path) != digest]
    return {**findings, **log.findings(), "drawn": drawn, "final": run.state()}


def _rest(job: CheckJob, trainer_class: type) -> dict[str, Any]:
    run = _resumed(job, trainer_class)
    findings: dict[str, Any] = {"probe": _probe(run)}
    log = _Log()
    log.states[run.step] = _digests(run)
    for values in job.values[job.split :]:
        run.advance(values)
        log.add(run, with_state=True)
    # Copied by the codec, because the evaluation below uses the same trainer.
    save(run.state(), job.folder, "final")
    findings |= {**log.findings(), "final": load(job.folder, "final")}
    findings["evaluated"] = _evaluated_again(run)
    findings["quiet"] = _quiet(job, trainer_class)
    if findings["quiet"] != log.states[run.step]:
        findings["again"] = _repeated(job, trainer_class)
    return findings


def _resumed(job: CheckJob, trainer_class: type) -> TrainerRun:
    return TrainerRun.resume(
        trainer_class,
        step=job.split,
        first_values=job.values[0],
        last_values=job.values[job.split - 1],
        state=load(job.folder, "saved"),
        config=job.config,
        seed=job.seed,
        device=job.device,
    )


def _evaluated_again(run: TrainerRun) -> dict[str, Any]:
    """Evaluate twice, with digests of everything before and after."""
    state, probed = _digests(run), _probe(run)
    metrics = [run.evaluate(), run.evaluate()]
    return {"metrics": metrics, "states": [state, _digests(run)], "probes": [probed, _probe(run)]}


def _quiet(job: CheckJob, trainer_class: type) -> Digests:
    """Train the rest without evaluating or saving, and return the final digests."""
    run = _resumed(job, trainer_class)
    for values in job.values[job.split :]:
        run.advance(values)
    return _digests(run)


def _repeated(job: CheckJob, trainer_class: type) -> Digests:
    """Train the rest again with evaluation, to find changes by a second run in one process."""
    run = _resumed(job, trainer_class)
    log = _Log()
    for values in job.values[job.split :]:
        run.advance(values)
        log.add(run, with_state=True)
    return log.states[run.step]


class _Log:
    """Metrics and digests of the state by step."""

    def __init__(self) -> None:
        self.metrics: dict[Step, dict[str, float]] = {}
        self.states: dict[Step, Digests] = {}

    def add(self, run: TrainerRun, *, with_state: bool) -> None:
        self.metrics[run.step] = run.evaluate()
        if with_state:
            self.states[run.step] = _digests(run)

    def findings(self) -> dict[str, Any]:
        return {"metrics": self.metrics, "states": self.states}


def _digests(run: TrainerRun) -> Digests:
    # Through the codec, because it changes types: a parameter becomes a tensor, a GPU's tensor
    # a tensor of the CPU.
    snapshot = encode(run.state())
    state = decode(snapshot.document, snapshot.data)
    return {path: leaf_digest(value) for path, value in leaves(state, "state")}


def _probe(run: TrainerRun) -> Digests:
    return probe(run.trainer, run.trainer.device)
