"""The check that a saved and loaded trainer continues exactly.

A forgotten generator or momentum is silent: training continues with wrong numbers. The check
trains the same steps in one go and with a new process in between, compares the two bit for bit,
and names the first difference.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dasktune.errors import refuse
from dasktune.sequences import as_sequence
from dasktune.trainer.base import problems_of
from dasktune.trainer.check_resume.differences import Difference, state_differences
from dasktune.trainer.check_resume.new_process import CheckJob, Digests, run_in_new_process
from dasktune.trainer.check_resume.probe import GENERATOR
from dasktune.trainer.code import pack
from dasktune.trainer.generators import is_cuda
from dasktune.types import Step

GPU_TOLERANCE = 1e-3
"""Relative difference that is allowed on a GPU without deterministic algorithms."""

_MAX_SUSPECTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeReport:
    """The result of `check_resume`.

    Parameters
    ----------
    differences
        The differences, causes before effects; empty if the check passed.
    tolerance
        Relative difference of numbers that was allowed; 0 means bit for bit.
    split, total
        Steps before the new process, and in all.
    """

    differences: tuple[Difference, ...]
    tolerance: float
    split: Step
    total: Step

    @property
    def ok(self) -> bool:
        """Whether the resumed training equals the undisturbed one."""
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
    run: Callable[[CheckJob], dict[str, Any]] = run_in_new_process,
) -> ResumeReport:
    """Check whether saving, loading in a new process and continuing changes the training.

    One process trains `total` steps in one go. Another process loads the state saved after
    `split` steps and trains the rest. The check compares states and metrics of every step after
    the split. The second process also evaluates twice, and trains the rest once more without
    evaluating, because `evaluate` must leave no trace. If the states agree at the split and
    differ later, the check compares everything that the trainer could depend on (attributes,
    global variables, random generators) to name the forgotten part.

    Parameters
    ----------
    trainer_class
        The trainer to check.
    hp
        Hyper-parameters by name: values or sequences. Let some change after the split.
    split, total
        Steps before the new process, and in all. Both parts should take a few epochs.
    config, seed, device
        Given to the trainer.
    run
        Runs a job in a new process and returns its findings.

    Raises
    ------
    ConfigurationError
        If the class is not a trainer, or the steps are out of order.
    TrainerError
        If the trainer failed; the error holds the traceback of the process.
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
            job = CheckJob(
                part=part,
                code=code,
                values=values,
                split=split,
                config=config or {},
                seed=seed,
                device=device,
                folder=folder,
            )
            return run(job)

        whole, rest = findings("whole"), findings("rest")
    tolerance = _tolerance(trainer_class, device)
    differences = (*_resuming(whole, rest, split, tolerance), *_evaluating(rest, tolerance))
    return ResumeReport(differences=differences, tolerance=tolerance, split=split, total=total)


def _tolerance(trainer_class: type, device: str) -> float:
    if not is_cuda(device) or getattr(trainer_class, "deterministic", False):
        return 0.0
    return GPU_TOLERANCE


def _resuming(
    whole: Mapping[str, Any], rest: Mapping[str, Any], split: Step, tolerance: float
) -> list[Difference]:
    """Return the differences of the resumed training: causes, then the first effects."""
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
    """Yield the first differing part of the state and the first differing metric."""
    for step in sorted(rest["metrics"]):
        changed = _changed(whole["states"][step], rest["states"][step])
        path = f"metrics[{step}]"
        metrics = [*state_differences(whole["metrics"][step], rest["metrics"][step], path=path)]
        if not changed and not metrics:
            continue
        if changed:
            yield Difference(
                path=changed[0],
                reason=f"is the first of {len(changed)} in the state to differ, after step {step}",
            )
        yield from metrics[:1]
        return


def _suspects(
    whole: Mapping[str, Any], rest: Mapping[str, Any], state_differs: bool
) -> Iterator[Difference]:
    """Yield the parts that loading did not restore, or that the cause is unknown."""
    changed = [
        path
        for path in _changed(whole["probe"], rest["probe"])
        # An unused generator may be in any state.
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
    """Return the rank of a suspect: gradients last, because most trainers drop them."""
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
    """Return the paths with different digests, in order."""
    paths = [*before, *(path for path in after if path not in before)]
    return [path for path in paths if before.get(path) != after.get(path)]
