"""Whether a trainer that is saved and loaded goes on as if it had never stopped.

A forgotten generator or momentum is silent: training goes on, and only the numbers are
other ones. Here the same steps are trained in one go and with a new process in between,
compared bit for bit, and the first thing that differs is named.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dasktune.errors import TrainerError, refuse
from dasktune.sequences import as_sequence
from dasktune.trainer.base import problems_of
from dasktune.trainer.check_resume.differences import Difference, state_differences
from dasktune.trainer.check_resume.new_process import Digests, Job, load
from dasktune.trainer.check_resume.probe import GENERATOR
from dasktune.trainer.code import pack
from dasktune.trainer.generators import is_cuda
from dasktune.types import Step

GPU_TOLERANCE = 1e-3
"""Relative difference that is let pass on a GPU without deterministic algorithms."""

_MAX_SUSPECTS = 8
_COMMAND = "from dasktune.trainer.check_resume.new_process import main; main()"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeReport:
    """What `check_resume` found.

    Parameters
    ----------
    differences
        What differs, the first and most telling ahead; empty if nothing does.
    tolerance
        Relative difference of numbers that was let pass; 0 means bit for bit.
    split, total
        Steps before the new process, and in all.
    """

    differences: tuple[Difference, ...]
    tolerance: float
    split: Step
    total: Step

    @property
    def ok(self) -> bool:
        """Whether the resumed training is the undisturbed one."""
        return not self.differences

    def __str__(self) -> str:
        how = "bit for bit" if not self.tolerance else f"within {self.tolerance:g} (relative)"
        steps = f"{self.split} + {self.total - self.split} steps with a new process in between"
        if self.ok:
            return f"resume check passed: {steps} are {self.total} steps in one go, {how}"
        lines = [f"resume check failed: {steps} are not {self.total} steps in one go, {how}"]
        return "\n".join([*lines, *(f"- {difference}" for difference in self.differences)])


def check_resume(
    trainer_class: type,
    hp: Mapping[str, object],
    *,
    split: Step,
    total: Step,
    config: Mapping[str, object] | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> ResumeReport:
    """Return whether saving, loading in a new process and going on changes anything.

    One process trains `total` steps in one go; another loads what the first one saved
    after `split` steps and trains the rest. States and metrics of every step after the
    split are compared. The second one also evaluates twice, and trains the rest once
    more without evaluating: `evaluate` must leave no trace. Where the states are the
    same at the split and differ later, everything that the trainer could depend on
    (attributes, global variables, random generators) is compared to name what was
    forgotten.

    Parameters
    ----------
    trainer_class
        The trainer to check.
    hp
        Hyper-parameters by name: values or sequences. Let some change after the split.
    split, total
        Steps before the new process, and in all. Let a few epochs pass in both parts.
    config, seed, device
        What the trainer is given.

    Raises
    ------
    ConfigurationError
        If the class is no trainer, or the steps are out of order.
    TrainerError
        If the trainer failed; with the traceback of the process.
    """
    problems = [*problems_of(trainer_class)]
    if not 1 <= split < total:
        problems.append(f"split must be >= 1 and less than total, got {split} of {total}")
    refuse(problems)
    functions = {name: as_sequence(value) for name, value in hp.items()}
    values = [
        {name: function(step) for name, function in functions.items()} for step in range(total)
    ]
    code = pack(trainer_class)
    with tempfile.TemporaryDirectory(prefix="dasktune-resume-") as folder:

        def findings(part: Literal["whole", "rest"]) -> dict[str, Any]:
            job = Job(
                part=part,
                code=code,
                values=values,
                split=split,
                config=config or {},
                seed=seed,
                device=device,
                folder=folder,
            )
            return _findings(job)

        whole, rest = findings("whole"), findings("rest")
    tolerance = _tolerance(trainer_class, device)
    differences = (*_resuming(whole, rest, split, tolerance), *_evaluating(rest, tolerance))
    return ResumeReport(differences=differences, tolerance=tolerance, split=split, total=total)


def _tolerance(trainer_class: type, device: str) -> float:
    if not is_cuda(device) or getattr(trainer_class, "deterministic", False):
        return 0.0
    return GPU_TOLERANCE


def _findings(job: Job) -> dict[str, Any]:
    """Let a new process do a job, and return what it found."""
    done = subprocess.run(
        [sys.executable, "-c", _COMMAND], input=pickle.dumps(job), capture_output=True, check=False
    )
    if done.returncode != 0:
        text = done.stderr.decode(errors="replace").strip()
        lines = text.splitlines()
        message = lines[-1] if lines else f"the process ended with code {done.returncode}"
        traceback = text[max(text.find("Traceback (most recent"), 0) :]
        raise TrainerError(f"{job.code.qualname} failed in check_resume: {message}", traceback)
    found: dict[str, Any] = load(job.folder, job.part)
    return found


def _resuming(
    whole: Mapping[str, Any], rest: Mapping[str, Any], split: Step, tolerance: float
) -> list[Difference]:
    """Return what resuming changed: causes first, then the first effects."""
    if tolerance:
        return list(_within(whole, rest, tolerance))
    loaded = [
        Difference(path=path, reason="after loading is not what was saved")
        for path in _changed(whole["states"][split], rest["states"][split])
    ]
    effects = list(_effects(whole, rest))
    if not effects:
        return loaded
    return [*loaded, *_suspects(whole, rest, bool(loaded)), *effects]


def _within(
    whole: Mapping[str, Any], rest: Mapping[str, Any], tolerance: float
) -> Iterator[Difference]:
    for step, metrics in rest["metrics"].items():
        name = f"metrics after step {step}"
        yield from state_differences(
            whole["metrics"][step], metrics, path=name, tolerance=tolerance
        )
    final = {key: value for key, value in whole["final"].items() if key != "generators"}
    resumed = {key: value for key, value in rest["final"].items() if key != "generators"}
    yield from state_differences(final, resumed, tolerance=tolerance)


def _effects(whole: Mapping[str, Any], rest: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield the first thing in the state and the first metric that came out differently."""
    for step in sorted(rest["metrics"]):
        changed = _changed(whole["states"][step], rest["states"][step])
        path = f"metrics[{step}]"
        found = [*state_differences(whole["metrics"][step], rest["metrics"][step], path=path)]
        if not changed and not found:
            continue
        if changed:
            yield Difference(
                path=changed[0],
                reason=f"is the first of {len(changed)} in the state to differ, after step {step}",
            )
        yield from found[:1]
        return


def _suspects(
    whole: Mapping[str, Any], rest: Mapping[str, Any], state_differs: bool
) -> Iterator[Difference]:
    """Yield what was not brought back by loading, or that nothing is known of it."""
    changed = [
        path
        for path in _changed(whole["probe"], rest["probe"])
        # A generator nobody draws from starts anywhere.
        if not path.endswith(GENERATOR) or path in whole["drawn"]
    ]
    for path in sorted(changed, key=_suspicion)[:_MAX_SUSPECTS]:
        yield Difference(
            path=path,
            reason="is not what it was when the state was saved: load_state_dict must restore it",
        )
    if not changed and not state_differs:
        yield Difference(
            path="something outside the state",
            reason="decides the result: nothing that the trainer holds, no global variable that "
            "its code reads and no global generator differs after loading, so look for what "
            "changes in train() alone (files, time, iterators, threads)",
        )


def _suspicion(path: str) -> int:
    """Return the rank of a suspect: gradients last, which most trainers drop anyway."""
    if path.endswith(".grad"):
        return 2
    return 0 if path.startswith("trainer.") else 1


def _evaluating(rest: Mapping[str, Any], tolerance: float) -> Iterator[Difference]:
    """Yield the traces that `evaluate` left."""
    evaluated = rest["evaluated"]
    first, second = evaluated["metrics"]
    for difference in state_differences(first, second, path="metrics", tolerance=tolerance):
        yield Difference(path=difference.path, reason=f"evaluated twice, {difference.reason}")
    visible = _changed(*evaluated["states"])
    for path in visible:
        yield Difference(path=path, reason="is changed by evaluate, which must leave no trace")
    if tolerance or visible:
        return
    last = rest["states"][max(rest["states"])]
    if changed := _changed(last, rest["quiet"]):
        yield from _hidden_trace(changed, rest, last)


def _hidden_trace(
    changed: list[str], rest: Mapping[str, Any], last: Digests
) -> Iterator[Difference]:
    if _changed(last, rest["again"]):
        yield Difference(
            path=changed[0],
            reason="differs when the same steps are trained again in the same process: something "
            "outside the trainer object is carried along",
        )
        return
    for path in _changed(*rest["evaluated"]["probes"]):
        yield Difference(path=path, reason="is changed by evaluate, which must leave no trace")
    yield Difference(
        path=changed[0],
        reason="differs when evaluate and state_dict are not called between the steps",
    )


def _changed(before: Digests, after: Digests) -> list[str]:
    """Return the paths at which two sets of digests differ, in order."""
    paths = [*before, *(path for path in after if path not in before)]
    return [path for path in paths if before.get(path) != after.get(path)]
