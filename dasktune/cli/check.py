"""The command ``check``: it tells whether the trainer of a study resumes exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dasktune.cli.options import (
    DONE,
    FAILED,
    AsJson,
    Config,
    StudyPath,
    open_study,
    print_json,
)
from dasktune.errors import ConfigurationError
from dasktune.types import Register, Step

if TYPE_CHECKING:
    from dasktune.algos.base import Tuner


def check(
    file: StudyPath,
    split: Annotated[
        int | None,
        typer.Option(help="Resume once, after so many steps; several times if not given."),
    ] = None,
    total: Annotated[
        int | None,
        typer.Option(help="Most steps in one go; 7, or to an epoch's end, if not given."),
    ] = None,
    trial: Annotated[
        int | None,
        typer.Option(
            min=0, help="Which of the tuner's trials; whose values change first if not given."
        ),
    ] = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Check that the trainer resumes exactly.

    Trains in one go and with a new process in between, and compares bit for bit.
    """
    from dasktune._worker.gpus import visible_gpus
    from dasktune.trainer.check_resume.check import check_resume
    from dasktune.trainer.check_resume.plan import until
    from dasktune.trainer.check_resume.verdict import device_of

    study, tuner = open_study(file, config)
    chosen = _trial(tuner, trial)
    _check_horizon(total, chosen.max_steps)
    device = device_of(study.results.options.needs)
    if device == "cuda" and not visible_gpus():
        device = "cpu"  # a part of the answer, recorded as such
    outcome = check_resume(
        study.trainer,
        {name: until(function, chosen.max_steps) for name, function in chosen.sequences.items()},
        split=split,
        total=total,
        config=study.config,
        seed=study.seed,
        device=device,
    )
    study.record_check(
        outcome.ok,
        str(outcome),
        device=device,
        splits=outcome.splits,
        steps=outcome.steps,
        files=outcome.files,
    )
    if as_json:
        differences = [str(difference) for difference in outcome.differences]
        names = ("split", "splits", "total", "tolerance", "steps", "kept", "unchecked")
        figures = {name: getattr(outcome, name) for name in names}
        print_json({"ok": outcome.ok, "differences": differences, "trial": chosen.trial, **figures})
    else:
        typer.echo(str(outcome))
    raise typer.Exit(DONE if outcome.ok else FAILED)


def _trial(tuner: Tuner, number: int | None) -> Register:
    """Return one of the trials that a tuner registers in its first answer.

    If `number` is None, it is the one whose values change first.
    """
    trials = [decision for decision in tuner.ask(1) if isinstance(decision, Register)]
    if number is None and trials:
        return min(trials, key=_first_change)
    for trial in trials:
        if trial.trial == number:
            return trial
    raise ConfigurationError(f"trial must be one of 0 to {len(trials) - 1}, got {number}")


def _first_change(trial: Register) -> Step:
    from dasktune.trainer.check_resume.plan import change_or_end

    return change_or_end(trial.sequences, trial.max_steps)


def _check_horizon(total: Step | None, max_steps: Step) -> None:
    if total is not None and total > max_steps:
        raise ConfigurationError(f"total must be <= {max_steps}, the trial's steps, got {total}")
