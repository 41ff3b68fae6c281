"""The new processes in which `check_resume` trains.

Each receives the trainer's code on its standard input, which it imports, and then one job. It
writes its findings into the job's folder. A failure ends the process with a traceback and an exit
code.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dasktune._engine.alike import user_line
from dasktune._engine.timeouts import FIRST_CHECK_WAITING, PARENT_LOOK_SECONDS
from dasktune.errors import (
    ConfigurationError,
    ResumeError,
    StateError,
    TrainerError,
    UnknownValueError,
)
from dasktune.storage.buffers import Buffer, empty, in_pages
from dasktune.storage.codec import decode, encode
from dasktune.trainer.check_resume.opened_files import OpenedFiles
from dasktune.trainer.check_resume.plan import Span
from dasktune.trainer.code import TrainerCode, unpack
from dasktune.trainer.data import ResumableLoader
from dasktune.trainer.generators import seed_global
from dasktune.trainer.gpu_memory import take_gpu_memory_as_needed
from dasktune.trainer.lifecycle import TrainerRun
from dasktune.trainer.proof.arrays import arrays_of
from dasktune.trainer.proof.differences import Difference, leaf_digest, leaves
from dasktune.trainer.proof.remedies import Proving, deciding
from dasktune.types import Step, Value

Digests = dict[str, str]
COMMAND = [
    sys.executable,
    "-c",
    "from dasktune.trainer.check_resume.new_process import main; main()",
]
_REFUSED = "refused"
"""Name of the finding of a trainer that has refused its hyper-parameters or config."""

_BROKEN = "broken"
"""Name of the finding of a trainer that has broken a rule of trainers."""

_UNKNOWN = "unknown"
"""Name of the finding of a trainer that reads a name that is not among them."""


class BrokenRuleError(TrainerError):
    """The trainer breaks a rule of all trainers: each of its trials would fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckJob:
    """The job of one process.

    Parameters
    ----------
    part
        ``whole``: train all steps in one go, and save before each resumption; ``rest``: load
        the saved states and train on from each.
    values
        Hyper-parameters at every step up to the last that the job may train to.
    total
        Steps in one go. If an epoch ends later, but within `values`, one resumption is added
        there.
    spans
        The resumptions, the longest first.
    path
        Where modules are looked for: those beside a script may be imported in ``build``.
    free
        Steps that may be trained however long they take.
    tolerance
        Relative difference of numbers that the check allows; 0 means bit for bit.
    seconds
        The work after which no step above `free` begins; None for no limit. See `work_seconds`.
    parent
        The parent of a process that is watched: each step is shown, and when the parent is gone
        the process ends. None if nothing watches it.
    """

    part: Literal["whole", "rest"]
    code: TrainerCode
    values: Sequence[Mapping[str, Value]]
    total: Step
    spans: Sequence[Span]
    config: Mapping[str, object]
    seed: int
    device: str
    folder: str
    path: Sequence[str]
    free: Step = 0
    tolerance: float = 0.0
    seconds: float | None = None
    parent: int | None = None

    @property
    def opening(self) -> bytes:
        """The first part of the input of its process, which is the same for all jobs of a check."""
        return pickle.dumps((self.path, self.code, self.parent))

    @property
    def order(self) -> bytes:
        """The second part of the input of its process."""
        return pickle.dumps(self)

    def findings(self) -> dict[str, Any]:
        """Return the findings of its process so far."""
        findings: dict[str, Any] = load(self.folder, self.part)
        return findings

    @property
    def opened_path(self) -> Path:
        """The file with the files that the first process has opened; it is there after a step."""
        return Path(self.folder, "opened.json")

    @property
    def steps_path(self) -> Path:
        """The file that grows by 1 byte with each step; it exists once training begins."""
        return Path(self.folder, f"{self.part}.steps")


def run_in_new_process(
    job: CheckJob, *, execute: Callable[..., subprocess.CompletedProcess[bytes]] | None = None
) -> dict[str, Any]:
    """Run a job in a new process, started by `subprocess.run`, and return its findings.

    Raises
    ------
    ConfigurationError
        If the trainer refused its hyper-parameters or config.
    TrainerError
        If the trainer failed; the error holds the traceback of the process. It is an
        `UnknownValueError` with the line of the trainer's code if that reads an unknown name.
    """
    execute = subprocess.run if execute is None else execute
    done = execute(COMMAND, input=job.opening + job.order, capture_output=True, check=False)
    return findings_of(job, done)


def findings_of(job: CheckJob, done: subprocess.CompletedProcess[bytes]) -> dict[str, Any]:
    """Return the findings of the process of a job; raise as `run_in_new_process` does."""
    if done.returncode != 0:
        text = done.stderr.decode(errors="replace").strip()
        lines = text.splitlines()
        message = lines[-1] if lines else f"the process ended with code {done.returncode}"
        raised = text[max(text.find("Traceback (most recent"), 0) :]
        raise TrainerError(f"{job.code.qualname} failed in check_resume: {message}", raised)
    return accepted(job, job.findings())


def accepted(job: CheckJob, findings: dict[str, Any]) -> dict[str, Any]:
    """Return findings of a job's process; raise as `run_in_new_process` does."""
    if _UNKNOWN in findings:
        raise UnknownValueError(findings[_UNKNOWN])
    if _BROKEN in findings:
        message, raised = findings[_BROKEN]
        raise BrokenRuleError(f"{job.code.qualname} failed in check_resume: {message}", raised)
    if _REFUSED in findings:
        raise ConfigurationError(findings[_REFUSED])
    return findings


class _Room:
    """Memory for one copy of a state after the other: fresh pages take longer than the copy."""

    def __init__(self) -> None:
        self._memory = empty(0)

    def __call__(self, nbytes: int) -> Buffer:
        if self._memory.nbytes < nbytes:
            self._memory = in_pages(nbytes)
        return self._memory[:nbytes]


_room = _Room()


def save(state: object, folder: str, name: str) -> None:
    """Write a state into two files, encoded as in a checkpoint."""
    snapshot = encode(state, allocate=_room)
    Path(folder, f"{name}.bin").write_bytes(snapshot.data.data)
    _write(Path(folder, f"{name}.json"), snapshot.document)


def _write(path: Path, document: object) -> None:
    """Write JSON; a process that is killed leaves no half of it."""
    aside = path.with_suffix(".new")
    aside.write_text(json.dumps(document))
    aside.replace(path)


def load(folder: str, name: str) -> Any:
    """Return the state that `save` wrote."""
    document = json.loads(Path(folder, f"{name}.json").read_text())
    with Path(folder, f"{name}.bin").open("rb") as file:
        data = in_pages(document["nbytes"])
        read = file.readinto(data.data)
    if read != data.nbytes:
        raise TrainerError(f"{file.name} must have {data.nbytes} bytes, got {read}")
    return decode(document, data, copy=False)


def _end_with(parent: int) -> None:
    """End this process, and what it has started, when the one that watches it is gone.

    Nobody else ends a trainer that hangs. If a parent dies, its children get another parent.
    """
    while os.getppid() == parent:
        time.sleep(PARENT_LOOK_SECONDS)
    if hasattr(os, "killpg") and os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def work_seconds(wall: float, cpu: float) -> float:
    """Return the processor time of a process, at most the time that passed, at least its tenth.

    On a busy machine a process waits for processors, and does the same work in a longer time. One
    that hardly computes waits for something else, which must end at some time.

    Examples
    --------
    >>> work_seconds(10.0, 4.0), work_seconds(10.0, 60.0), work_seconds(10.0, 0.0)
    (4.0, 10.0, 1.0)
    """
    return min(wall, max(cpu, wall / FIRST_CHECK_WAITING))


class WorkClock:
    """The work of this process since the clock was made, in seconds; see `work_seconds`."""

    def __init__(self) -> None:
        self._begun = self._now()

    def __call__(self) -> float:
        """Return it."""
        wall, cpu = (now - begun for now, begun in zip(self._now(), self._begun, strict=True))
        return work_seconds(wall, cpu)

    @staticmethod
    def _now() -> tuple[float, float]:
        return time.monotonic(), sum(os.times()[:4])


class StepMeter:
    """Counts the steps of a job, shows them, and says when its time is over.

    Attributes
    ----------
    trained
        Number of steps trained.
    """

    def __init__(self, job: CheckJob, clock: Callable[[], float]) -> None:
        self._job, self._clock, self._start = job, clock, clock()
        self.trained = 0
        self._show(b"")

    @property
    def seconds(self) -> float:
        """Work since the job began."""
        return self._clock() - self._start

    @property
    def is_over(self) -> bool:
        """Whether the job should begin no further step."""
        seconds = self._job.seconds
        if seconds is None or self.trained < self._job.free:
            return False
        return self.seconds >= seconds

    def advance(self, run: TrainerRun, values: Mapping[str, Value]) -> None:
        """Train one step."""
        run.advance(values)
        self.trained += 1
        self._show(b".")

    def _show(self, steps: bytes) -> None:
        if self._job.parent is not None:
            with self._job.steps_path.open("ab") as file:
                file.write(steps)


def main(clock: Callable[[], Callable[[], float]] = WorkClock) -> None:
    """Import the code and run the job on standard input; only the parent process writes there."""
    path, code, parent = pickle.load(sys.stdin.buffer)
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    sys.path[:] = path
    take_gpu_memory_as_needed()
    opened = OpenedFiles(code.module.partition(".")[0])
    trainer_class = unpack(code)
    job: CheckJob = pickle.load(sys.stdin.buffer)
    meter = StepMeter(job, clock())  # after the imports, which are no training
    opened.begin()
    try:
        if job.part == "whole":
            findings = _whole(job, trainer_class, meter, opened)
        else:
            findings = _rest(job, trainer_class, meter)
        findings["files"] = opened.read()
    except UnknownValueError as error:
        line = user_line(traceback.format_exc())
        findings = {_UNKNOWN: f"{error} ({line})" if line else str(error)}
    except ConfigurationError as error:
        findings = {_REFUSED: str(error)}
    except (StateError, TrainerError) as error:  # it breaks a rule of trainers in each trial
        line = user_line(traceback.format_exc())
        findings = {_BROKEN: [f"{error} ({line})" if line else str(error), traceback.format_exc()]}
    save(findings, job.folder, job.part)


def _whole(
    job: CheckJob, trainer_class: type, meter: StepMeter, opened: OpenedFiles
) -> dict[str, Any]:
    seed_global(job.seed, job.device)
    run = TrainerRun.start(
        trainer_class,
        job.values[0],
        config=job.config,
        seed=job.seed,
        device=job.device,
        proving=Proving(sets_generators=False),
    )
    log, epochs = _Log(), Epochs(run.trainer)
    spans = list(job.spans)
    proofs: dict[Step, dict[str, str]] = {}
    traces: dict[str, str] = {}

    def save_state() -> None:
        state = run.state()
        save(state, job.folder, f"saved-{run.step}")
        proofs[run.step] = run.proof(state)

    def train(stop: Step, start: Step) -> None:
        """Train up to `stop`; evaluate from `start` on."""
        while run.step < stop and not meter.is_over:
            meter.advance(run, job.values[run.step])
            epochs.look(run.step)
            if run.step < start:
                continue
            is_saved = any(run.step == span.split for span in spans)
            before = {} if log.metrics else _held(run)
            log.add(run, with_state=any(span.split <= run.step <= span.stop for span in spans))
            if job.parent is not None:  # which may end this process
                _write(job.opened_path, opened.so_far())
            if before:
                now = _held(run)
                traces.update({path: now[path] for path in now if now[path] != before.get(path)})
            if is_saved:
                save_state()

    train(job.total, 0)
    final = _copied(run, job.folder)
    border = epochs.later_end(spans[0].split, run.step)
    if run.step == job.total and border is not None and border < len(job.values):
        spans.append(Span(split=border - 1, stop=border + 1))
        if border - 1 == run.step:  # trained already, but not saved
            save_state()
        train(border + 1, border - 1)
    return {
        **log.findings(),
        "proofs": proofs,
        "traces": [*traces],
        "built": {} if run.witness is None else run.witness.built,
        "left out": {} if run.witness is None else run.witness.left_out,
        "final": final,
        "reached": run.step,
        "spans": [[span.split, span.stop] for span in spans],
        "epochs": epochs.ends,
        "later": epochs.later_end(spans[0].split, run.step),
        "trained": meter.trained,
        "seconds": meter.seconds,
    }


def _rest(job: CheckJob, trainer_class: type, meter: StepMeter) -> dict[str, Any]:
    findings: dict[str, Any] = {"spans": [], "kept": []}
    whole = load(job.folder, "whole")
    last: tuple[TrainerRun, _Log, Span, Mapping[str, str]] | None = None
    for span in job.spans:
        if meter.is_over:
            break
        log, done = _Log(), {"split": span.split, "stop": span.split}
        try:
            run, differences = _compared(job, trainer_class, span, whole["proofs"][span.split])
        except ResumeError as error:
            path = error.paths[0] if error.paths else "load_state_dict"
            text = str(error).removeprefix(f"{path}: ")
            findings["spans"].append({**log.findings(), **done, "deciding": [(path, text)]})
            return {**findings, "trained": meter.trained}
        if last is None and run.witness is not None:
            builds = run.witness.differences_of_build(whole["built"])
            findings["builds"] = _pairs(deciding(run.witness, builds))
        findings["kept"] += [] if run.witness is None else run.witness.kept
        log.states[run.step] = _digests(run)
        while run.step < span.stop and not meter.is_over:
            meter.advance(run, job.values[run.step])
            log.add(run, with_state=True)
        done["stop"] = run.step
        chosen = [] if run.witness is None else deciding(run.witness, differences)
        rest = [each for each in differences if each not in chosen]
        findings["spans"].append(
            {**log.findings(), **done, "deciding": _pairs(chosen), "others": _pairs(rest)}
        )
        if run.step == job.total:
            findings["final"] = _copied(run, job.folder)
        if job.parent is not None:  # which may end this process
            known = {name: each for name, each in findings.items() if name != "final"}
            save({**known, "trained": meter.trained}, job.folder, job.part)
        last = run, log, Span(split=span.split, stop=run.step), whole["proofs"][span.split]
    if last is not None:
        findings |= _evaluating(job, trainer_class, meter, *last)
    return {**findings, "trained": meter.trained}


def _pairs(differences: Iterable[Difference]) -> list[tuple[str, str]]:
    return [(each.path, each.reason) for each in differences]


def _evaluating(
    job: CheckJob,
    trainer_class: type,
    meter: StepMeter,
    run: TrainerRun,
    log: _Log,
    span: Span,
    proof: Mapping[str, str],
) -> dict[str, Any]:
    """Evaluate twice, and train the steps of a resumption once more without evaluating."""
    findings: dict[str, Any] = {"evaluated": _evaluated_again(run)}
    if meter.is_over:
        return findings
    findings["quiet"], findings["held quietly"] = _quiet(job, trainer_class, span, proof, meter)
    if findings["quiet"] != log.states[span.stop]:
        findings["again"] = _repeated(job, trainer_class, span, proof, meter)
    return findings


def _copied(run: TrainerRun, folder: str) -> Any:
    """Return a copy of the state, made by the codec: the trainer goes on with its own."""
    save(run.state(), folder, "copy")
    return load(folder, "copy")


def _compared(
    job: CheckJob, trainer_class: type, span: Span, proof: Mapping[str, str]
) -> tuple[TrainerRun, list[Difference]]:
    """Return a resumed run, and what it holds otherwise than the one that saved the state."""
    seed_global(job.seed, job.device)
    if job.code.kind == "bytes":
        trainer_class = unpack(job.code)  # what others have left in their copies stays there
    state = load(job.folder, f"saved-{span.split}")
    arrays = arrays_of(state)
    run = TrainerRun.resume(
        trainer_class,
        step=span.split,
        first_values=job.values[0],
        last_values=job.values[span.split - 1],
        state=state,
        config=job.config,
        seed=job.seed,
        device=job.device,
        proving=Proving(sets_generators=False),
    )
    return run, [] if run.witness is None else run.witness.differences(proof, arrays)


def _evaluated_again(run: TrainerRun) -> dict[str, Any]:
    """Evaluate twice, with digests of everything before and after."""
    state, before = _digests(run), _held(run)
    metrics = [run.evaluate(), run.evaluate()]
    return {"metrics": metrics, "states": [state, _digests(run)], "held": [before, _held(run)]}


def _held(run: TrainerRun) -> dict[str, str]:
    return {} if run.witness is None else run.witness.texts({})


def _quiet(
    job: CheckJob, trainer_class: type, span: Span, proof: Mapping[str, str], meter: StepMeter
) -> tuple[Digests, dict[str, str]]:
    """Train a resumption without evaluating or saving; return the final digests and parts."""
    run, _ = _compared(job, trainer_class, span, proof)
    for values in job.values[span.split : span.stop]:
        meter.advance(run, values)
    return _digests(run), _held(run)


def _repeated(
    job: CheckJob, trainer_class: type, span: Span, proof: Mapping[str, str], meter: StepMeter
) -> Digests:
    """Train a resumption again with evaluation, to find changes by a second run in one process."""
    run, _ = _compared(job, trainer_class, span, proof)
    log = _Log()
    for values in job.values[span.split : span.stop]:
        meter.advance(run, values)
        log.add(run, with_state=True)
    return log.states[run.step]


class Epochs:
    """The ends of epochs that a trainer shows while it trains.

    A trainer shows its epoch by a `ResumableLoader`, or by an attribute ``epoch`` of its own or
    of an object that it holds.

    Attributes
    ----------
    ends
        The steps after which an epoch had ended.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._seen = self._epochs()
        self._consumed = self._positions()
        self._before = self._consumed
        self.ends: list[Step] = []

    def look(self, step: Step) -> None:
        """Look at the trainer after a step."""
        epochs = self._epochs()
        if any(self._seen.get(name, epoch) != epoch for name, epoch in epochs.items()):
            self.ends.append(step)
        self._seen = epochs
        self._before, self._consumed = self._consumed, self._positions()

    def later_end(self, first: Step, step: Step) -> Step | None:
        """Return the step of the first end of an epoch, if loaders promise one after `step`.

        None if an epoch has ended after the step `first`, or no loader tells.
        """
        if any(end > first for end in self.ends):
            return None
        ends = [
            step + -(-(samples - consumed) // (consumed - self._before[name][0]))
            for name, (consumed, samples) in self._consumed.items()
            if name in self._before and consumed > self._before[name][0]
        ]
        return min(ends, default=None)

    def _epochs(self) -> dict[str, int]:
        parts = {"": self._trainer, **_attributes(self._trainer)}
        epochs = {name: _epoch_of(part) for name, part in parts.items()}
        return {name: epoch for name, epoch in epochs.items() if epoch is not None}

    def _positions(self) -> dict[str, tuple[int, int]]:
        """Return the samples that each loader has consumed in its epoch, and that it has."""
        loaders = {
            name: part
            for name, part in _attributes(self._trainer).items()
            if isinstance(part, ResumableLoader)
        }
        return {name: (each.consumed, each.samples) for name, each in loaders.items()}


def _epoch_of(part: Any) -> int | None:
    if isinstance(part, ResumableLoader):
        return part.epoch
    epoch = _attributes(part).get("epoch")
    return epoch if type(epoch) is int else None


def _attributes(part: Any) -> Mapping[str, Any]:
    attributes = getattr(part, "__dict__", {})
    return attributes if isinstance(attributes, dict) else {}


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
    snapshot = encode(run.state(), allocate=_room)
    state = decode(snapshot.document, snapshot.data, copy=False)
    return {path: leaf_digest(value) for path, value in leaves(state, "state")}
