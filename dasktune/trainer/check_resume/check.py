"""The check that a saved and loaded trainer continues exactly.

A forgotten generator or momentum is silent: training continues with wrong numbers. The check
trains the same steps in one go and with a new process in between, compares the two bit for bit,
and names the first difference.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from dasktune._words import counted, listed
from dasktune.errors import refuse
from dasktune.sequences import Sequence as ValueFunction
from dasktune.sequences import as_sequence
from dasktune.trainer.base import GivenTrainer, is_harmless, problems_of
from dasktune.trainer.check_resume.new_process import CheckJob, Digests, run_in_new_process
from dasktune.trainer.check_resume.plan import (
    AFTER_SPLIT,
    SHORTEST,
    CheckPlan,
    Span,
    end_of,
    plan_check,
    plan_one,
    total_for,
)
from dasktune.trainer.code import TrainerCode, pack
from dasktune.trainer.fingerprint.fingerprint import taken
from dasktune.trainer.fingerprint.read_files import kept_files
from dasktune.trainer.generators import is_cuda
from dasktune.trainer.given import as_trainer
from dasktune.trainer.given_config import plain_config
from dasktune.trainer.proof.differences import Difference, state_differences
from dasktune.trainer.proof.remedies import harmless_in_state
from dasktune.types import Step

GPU_TOLERANCE = 1e-3
"""Relative difference that is allowed on a GPU without deterministic algorithms."""

EPOCH_REACH: Step = 200
"""The last step to which a check trains in order to see the end of an epoch."""

EPOCH_SECONDS = 30.0
"""The time after which it no longer goes on to the end of an epoch."""

_MAX_SUSPECTS = 8
_GRADIENT = ".grad"


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
        Steps before the first resumption in a new process, and steps in one go.
    splits
        Steps before each resumption.
    steps
        Number of steps trained for the check, in all processes together.
    kept
        The paths of what `state_dict` lacks and dasktune keeps beside the state.
    unchecked
        What the check did not reach, one sentence each.
    is_cut_short
        Whether something is among them for want of time.
    files
        The contents of the files that the trainer's code read, by path: digests, or sizes of
        large files.
    """

    differences: tuple[Difference, ...]
    tolerance: float
    split: Step
    total: Step
    splits: tuple[Step, ...] = ()
    steps: Step = 0
    kept: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    is_cut_short: bool = False
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the resumed training equals the undisturbed one, as far as it was reached."""
        return not self.differences

    @property
    def is_empty(self) -> bool:
        """Whether the time was over before anything was resumed: then `ok` means nothing."""
        return bool(self.unchecked) and not self.splits

    def __str__(self) -> str:
        if self.is_empty:
            return f"resume check not done: {'; '.join(self.unchecked)}"
        how = "bit for bit" if not self.tolerance else f"within {self.tolerance:g} (relative)"
        verb = "are" if self.ok else "are not"
        if len(self.splits) > 1:
            steps = f"{self.total} steps with a new process after {listed(self.splits)}"
        else:
            rest = self.total - self.split
            steps = f"{self.split} + {counted(rest, 'step')} with a new process in between"
        lines = [
            f"resume check {'passed' if self.ok else 'failed'}: {steps} {verb} {self.total} steps "
            f"in one go, {how}",
            *(f"- {difference}" for difference in self.differences),
            *(f"not checked: {sentence}" for sentence in self.unchecked),
        ]
        if self.kept:
            lines.append(f"kept beside the state, which lacks them: {listed(self.kept)}")
        if self.steps:
            lines.append(f"trained {counted(self.steps, 'step')}")
        return "\n".join(lines)


def check_resume(
    trainer_class: GivenTrainer,
    hp: Mapping[str, object],
    *,
    split: Step | None = None,
    total: Step | None = None,
    config: Mapping[str, object] | None = None,
    seed: int = 0,
    device: str = "cpu",
    limit: CheckLimit | None = None,
    storage: str | os.PathLike[str] | None = None,
    database: str | None = None,
    depends_on: Iterable[object] = (),
    run: Callable[[CheckJob], dict[str, Any]] = run_in_new_process,
) -> ResumeReport:
    """Check whether saving, loading in a new process and continuing changes the training.

    One process trains a few steps in one go. Another process loads the states that the first
    one saved on the way, and trains on from each of them. The check compares states and metrics
    of every step. It also compares everything that the trainer could depend on (attributes,
    global variables, default arguments, random generators): what differs after loading, and
    still differs after the next steps, is named even if it has had no effect yet. The second
    process evaluates twice, and trains some steps once more without evaluating, because
    `evaluate` must leave no trace.

    By default the check resumes after 2, 3 and 5 of 7 steps (18 steps trained in all). A
    hyper-parameter changes in between: a change that comes later in the configuration is moved
    there. If a `dasktune.trainer.ResumableLoader` promises the end of an epoch within 200
    steps and 30 seconds, the check goes on to it and resumes there, too.

    Parameters
    ----------
    trainer_class
        The trainer to check, a class or a function. Its `harmless_differences` are not reported
        unless the training differs.
    hp
        Hyper-parameters by name: values or sequences. Let some change.
    split, total
        Resume once, after `split` of `total` steps; `total` is `split` + 3 if it is None. With
        `total` alone, train no more than so many steps in one go.
    config, seed, device
        Given to the trainer.
    limit
        How much the check may train.
    storage, database
        As for `dasktune.create_study`. Where they are given, the verdict is recorded there, for
        all studies that train with this trainer and `config`.
    depends_on
        As for `dasktune.create_study`: part of the fingerprint.
    run
        Runs a job in a new process and returns its findings.

    Raises
    ------
    ConfigurationError
        If the class is not a trainer, the steps are out of order, or the trainer refuses its
        hyper-parameters or config.
    TrainerError
        If the trainer failed; the error holds the traceback of the process. If it reads a
        hyper-parameter that the trial does not have, the error has the line of its code.
    StorageError
        If the verdict cannot be recorded.
    """
    functions = {name: as_sequence(value) for name, value in hp.items()}
    horizon = end_of(functions)
    if total is None and split is not None:
        total = split + AFTER_SPLIT if horizon is None else min(split + AFTER_SPLIT, horizon)
    horizon = horizon if total is None else total
    problems = [*problems_of(trainer_class)]
    checked: type = as_trainer(trainer_class)
    if split is not None and not (total is not None and 1 <= split < total):
        problems.append(f"split must be >= 1 and less than total, got {split} of {total}")
    elif horizon is not None and horizon < SHORTEST:
        problems.append(f"total must be >= {SHORTEST}, got {horizon}")
    refuse(problems)
    config = plain_config(checked, config)
    limit = limit or CheckLimit()
    if split is not None and total is not None:
        plan = plan_one(functions, split, total)
    else:
        plan = _plan(functions, total_for(limit.steps, horizon), limit.steps)
    tolerance = tolerance_of(checked, device)
    given = _Given(
        code=pack(checked),
        config=config,
        seed=seed,
        device=device,
        tolerance=tolerance,
        limit=limit,
    )
    whole, rest = _findings(plan, given, run)
    harmless = harmless_in_state(checked)
    spans = rest["spans"]
    differences = [
        *_resuming(whole, rest, tolerance, harmless),
        *(_evaluating(rest, tolerance, harmless) if "evaluated" in rest else ()),
        *_first_traces(whole, rest),
    ]
    report = ResumeReport(
        differences=tuple(differences),
        tolerance=tolerance,
        split=plan.spans[0].split,
        total=whole["reached"],
        splits=tuple(sorted({span["split"] for span in spans})),
        steps=whole["trained"] + rest["trained"],
        kept=tuple(dict.fromkeys(rest.get("kept", ()))),
        unchecked=tuple(_unchecked(plan, whole, rest)),
        is_cut_short=not differences and ("quiet" not in rest or bool(_missing(plan, rest))),
        files=kept_files(whole.get("files", ()), checked, config),
    )
    if (storage is not None or database is not None) and not report.is_empty:
        # Workers import this module, and have no use for SQLAlchemy.
        from dasktune.trainer.check_resume.verdict import recorded_in, verdict, with_known_files

        take = partial(taken, checked, config, depends_on=tuple(depends_on))
        with recorded_in(storage, database) as verdicts:
            covered, _ = with_known_files(verdicts, take(), {}, take)
            outcome = verdict(
                covered.fingerprint.digest,
                device,
                ok=report.ok,
                text=str(report),
                splits=report.splits,
                steps=report.steps,
                files=report.files,
            )
            verdicts.record(outcome)
    return report


def _plan(functions: Mapping[str, ValueFunction], total: Step, steps: Step | None) -> CheckPlan:
    """Return the plan of a check, with the end of an epoch if the steps suffice for it."""
    plan = plan_check(functions, total, reach=EPOCH_REACH)
    if steps is None:
        return plan
    # To resume there takes 2 steps more, and 1 for a longer silent part.
    reach = total + max(0, steps - plan.cost - 3)
    return replace(plan, values=plan.values[:reach])


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckLimit:
    """How much a check may train.

    Parameters
    ----------
    steps
        Most steps in all; None for what the check takes by itself. A check trains at least 4.
    seconds
        Time of training after which it begins no step above `free`, and says what it did not
        reach; None for no limit. Starting its two processes takes a few seconds more.
    free
        Number of steps that it may train however long they take.
    """

    steps: Step | None = None
    seconds: float | None = None
    free: Step = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """The parts of a job that both processes get."""

    code: TrainerCode
    config: Mapping[str, object]
    seed: int
    device: str
    tolerance: float
    limit: CheckLimit


def _findings(
    plan: CheckPlan, given: _Given, run: Callable[[CheckJob], dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the findings of the two processes."""
    limit = given.limit
    # The steps of the plan take the time that they take, unless the caller limits it.
    free, seconds = (
        (plan.cost, EPOCH_SECONDS) if limit.seconds is None else (limit.free, limit.seconds)
    )
    with tempfile.TemporaryDirectory(prefix="dasktune-resume-") as folder:

        def findings(
            part: Literal["whole", "rest"], spans: Sequence[Span], free: Step, seconds: float | None
        ) -> dict[str, Any]:
            return run(
                CheckJob(
                    part=part,
                    code=given.code,
                    values=plan.values,
                    total=plan.total,
                    spans=spans,
                    config=given.config,
                    seed=given.seed,
                    device=given.device,
                    tolerance=given.tolerance,
                    folder=folder,
                    path=tuple(sys.path),
                    free=free,
                    seconds=seconds,
                )
            )

        is_limited = limit.seconds is not None
        # A limited check keeps half of its time for resuming.
        first = seconds / 2 if is_limited else seconds
        free_first = _free_in_one_go(free, plan) if is_limited else plan.total
        whole = findings("whole", plan.spans, free_first, first)
        reached = whole["reached"]
        spans = [
            Span(split=split, stop=min(stop, reached))
            for split, stop in whole["spans"]
            if split < reached
        ]
        # The loader of the first process may promise one resumption more.
        left = max(0.0, seconds - whole["seconds"]) if is_limited else None
        rest = findings("rest", spans, max(0, free - whole["trained"]), left)
    return whole, rest


def _unchecked(plan: CheckPlan, whole: Mapping[str, Any], rest: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a check did not reach."""
    if missing := _missing(plan, rest):
        step = "step" if len(missing) == 1 else "steps"
        yield f"resuming after {step} {listed(missing)}, for want of time"
    if "quiet" not in rest:
        yield "training without evaluating, for want of time"
    left_out = [f"{path} ({why})" for path, why in whole["left out"].items()]
    if left_out:
        more = f" and {len(left_out) - _MAX_SUSPECTS} more" if len(left_out) > _MAX_SUSPECTS else ""
        yield f"{listed(left_out[:_MAX_SUSPECTS])}{more}"
    if plan.change is None or plan.change > whole["reached"]:
        yield "a change of a hyper-parameter: none changes in these steps"
    later = whole["later"]
    if later is not None:
        yield f"the end of an epoch, which would come after step {later}"


def _missing(plan: CheckPlan, rest: Mapping[str, Any]) -> list[Step]:
    """Return the steps after which a check did not resume, for want of time."""
    done = {span["split"] for span in rest["spans"]}
    return [span.split for span in plan.spans if span.split not in done]


def _free_in_one_go(free: Step, plan: CheckPlan) -> Step:
    """Return how many of the free steps are trained in one go, so that the rest resume there.

    Examples
    --------
    >>> plan = plan_check({}, 7, reach=7)
    >>> [_free_in_one_go(free, plan) for free in (4, 5, 7, 8, 90)]
    [0, 3, 3, 4, 7]
    """
    total = total_for(free, plan.total)
    return total if total > plan.spans[0].split else 0


def tolerance_of(trainer_class: type, device: str) -> float:
    """Return the relative difference of numbers that is allowed; 0 means bit for bit."""
    if not is_cuda(device) or getattr(trainer_class, "deterministic", False):
        return 0.0
    return GPU_TOLERANCE


def _resuming(
    whole: Mapping[str, Any],
    rest: Mapping[str, Any],
    tolerance: float,
    harmless: tuple[str, ...],
) -> Iterator[Difference]:
    """Yield the differences of the resumed training: causes, then the first effects.

    What is loaded is compared bit for bit also where training may differ by a tolerance: no step
    lies between saving and loading.
    """
    yield from _of_pairs(rest.get("builds", ()))
    for span in rest["spans"]:
        differences = list(_of_span(whole, span, tolerance, harmless))
        if differences:
            yield from differences
            return  # another resumption shows the same again
    if tolerance and (differences := list(final_differences(whole, rest, tolerance))):
        yield from _hints(rest["spans"][0], tolerance)
        yield from differences


def _of_span(
    whole: Mapping[str, Any],
    span: Mapping[str, Any],
    tolerance: float,
    harmless: tuple[str, ...],
) -> Iterator[Difference]:
    """Yield the differences of a resumption: what loading did not restore, and its effects."""
    split = span["split"]
    held = list(_of_pairs(span["deciding"]))
    if split not in span["states"]:  # the state could not be loaded
        yield from held
        return
    loaded = [
        Difference(path=path, reason="after loading is not what was saved")
        for path in _changed(whole["states"][split], span["states"][split])
        if not is_harmless(path, harmless)
    ]
    if tolerance:
        effects = list(effects_beyond(tolerance, whole, span))
    else:
        effects = list(_effects(whole, span, harmless))
    yield from held[:_MAX_SUSPECTS]
    yield from loaded
    if effects:
        if not held and not loaded:
            yield from _hints(span, tolerance)
        yield from effects


def _of_pairs(pairs: Iterable[tuple[str, str]]) -> Iterator[Difference]:
    return (Difference(path=path, reason=reason) for path, reason in pairs)


def effects_beyond(
    tolerance: float, whole: Mapping[str, Any], span: Mapping[str, Any]
) -> Iterator[Difference]:
    """Yield the metrics of a resumption that differ by more than a tolerance."""
    for step, metrics in span["metrics"].items():
        path = f"metrics after step {step}"
        expected = whole["metrics"][step]
        yield from state_differences(expected, metrics, path=path, tolerance=tolerance)


def final_differences(
    whole: Mapping[str, Any], rest: Mapping[str, Any], tolerance: float
) -> Iterator[Difference]:
    """Yield the parts of the last state that differ by more than a tolerance."""
    if "final" not in rest:
        return
    final = {key: value for key, value in whole["final"].items() if key != "generators"}
    resumed = {key: value for key, value in rest["final"].items() if key != "generators"}
    yield from state_differences(final, resumed, tolerance=tolerance)


def _effects(
    whole: Mapping[str, Any], span: Mapping[str, Any], harmless: tuple[str, ...]
) -> Iterator[Difference]:
    """Yield the first differing part of the state and the first differing metric."""
    for step in sorted(span["metrics"]):
        changed = [
            path
            for path in _changed(whole["states"][step], span["states"][step])
            if not is_harmless(path, harmless)
        ]
        path = f"metrics[{step}]"
        metrics = [*state_differences(whole["metrics"][step], span["metrics"][step], path=path)]
        if not changed and not metrics:
            continue
        if changed:
            yield Difference(
                path=changed[0],
                reason=f"is the first of {len(changed)} in the state to differ, after step {step}",
            )
        yield from metrics[:1]
        return


def _hints(span: Mapping[str, Any], tolerance: float) -> Iterator[Difference]:
    """Yield where to look if nothing differs after loading on which a step seems to depend."""
    others = [each for each in _of_pairs(span["others"]) if not each.path.endswith(_GRADIENT)]
    yield from others[:_MAX_SUSPECTS]
    if tolerance:
        yield Difference(
            path="algorithms of the GPU",
            reason=f"may differ by more than {tolerance:g} in these steps, if they are not "
            "deterministic: whether they are the cause, or something outside the state is, shows "
            "a TorchTrainer with deterministic = True",
        )
    elif not others:
        yield Difference(
            path="something outside the state",
            reason="decides the result: nothing that the trainer holds, no global variable that "
            "its code reads and no global generator differs after loading, so look for what "
            "changes in train() alone (files, time, iterators, threads)",
        )


def _evaluating(
    rest: Mapping[str, Any], tolerance: float, harmless: tuple[str, ...]
) -> Iterator[Difference]:
    """Yield the traces that `evaluate` left."""
    evaluated = rest["evaluated"]
    first, second = evaluated["metrics"]
    for difference in state_differences(first, second, path="metrics", tolerance=tolerance):
        yield Difference(path=difference.path, reason=f"evaluated twice, {difference.reason}")
    visible = [path for path in _changed(*evaluated["states"]) if not is_harmless(path, harmless)]
    for path in visible:
        yield Difference(path=path, reason="is changed by evaluate, which must leave no trace")
    if tolerance or visible or "quiet" not in rest:
        return
    states = rest["spans"][-1]["states"]
    last = states[max(states)]
    changed = [path for path in _changed(last, rest["quiet"]) if not is_harmless(path, harmless)]
    if changed:
        yield from _hidden_trace(changed, rest, last, harmless)


def _first_traces(whole: Mapping[str, Any], rest: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield what the first evaluation has changed, and a resumption needs.

    Later ones may leave it as it is, so that only the first shows it.
    """
    for path in whole.get("traces", ()):
        if is_harmless(path, tuple(rest.get("kept", ()))):
            yield Difference(path=path, reason="is changed by evaluate, which must leave no trace")


def _hidden_trace(
    changed: list[str], rest: Mapping[str, Any], last: Digests, harmless: tuple[str, ...]
) -> Iterator[Difference]:
    if any(not is_harmless(path, harmless) for path in _changed(last, rest["again"])):
        yield Difference(
            path=changed[0],
            reason="differs when the same steps are trained again in the same process: something "
            "outside the trainer object is carried along",
        )
        return
    held = rest["evaluated"]["held"]
    # What follows from the trace, such as the weights, lies in the state under the same name.
    hidden = [
        path
        for path in _changed(held[0], rest["held quietly"])
        if not any(path.rpartition(".")[2] in each for each in changed)
    ]
    for path in dict.fromkeys([*_changed(*held), *hidden]):
        if not is_harmless(path, harmless):
            yield Difference(path=path, reason="is changed by evaluate, which must leave no trace")
    yield Difference(
        path=changed[0],
        reason="differs when evaluate and state_dict are not called between the steps",
    )


def _changed(before: Digests, after: Digests) -> list[str]:
    """Return the paths with different digests, in order."""
    paths = [*before, *(path for path in after if path not in before)]
    return [path for path in paths if before.get(path) != after.get(path)]
