"""The first study of a small network: whole processes of dasktune next to a tree by hand.

A CNN on scikit-learn's digits is trained by 24 schedules of 12 epochs each. The tree by hand
trains each shared beginning once, by plain tasks of Dask that hand states on in memory; nothing of
it is durable, and it knows nothing of resuming. dasktune runs as a user's first study does: with
the check of its trainer, whose CPU time is that of dasktune beyond a run without the check.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from figures import Figure, main
from overhead import CONTESTANT_OPTION, WORKERS, Times, bare_cluster, contest, run_contestant

import dasktune as dt
from dasktune.sequences import Constant, MultiStep, Piecewise
from dasktune.trainer.check_switch import SWITCH

EPOCHS = 12
ROUNDS = 5
RATES = (
    Constant(0.1),
    MultiStep(0.1, [4, 8], 0.3),
    MultiStep(0.1, [6], 0.1),
    MultiStep(0.1, [6, 9], 0.1),
    MultiStep(0.1, [9], 0.1),
    MultiStep(0.1, [10], 0.3),
)
BATCH_SIZES = (
    64,
    Piecewise([64, 32], boundaries=[5]),
    Piecewise([64, 128], boundaries=[8]),
    Piecewise([64, 16], boundaries=[10]),
)
SPACE = dt.Space(lr=RATES, momentum=[0.9], batch_size=BATCH_SIZES)


def measure(short: bool) -> Iterator[Figure]:
    """Run all contestants in turns."""
    preview = dt.preview(SPACE, max_steps=EPOCHS, workers=WORKERS)
    yield Figure(name="epochs asked for", value=preview.steps_requested)
    yield Figure(name="epochs that differ", value=preview.steps_unique)
    taken = contest(__file__, list(CONTESTANTS), SPACE.size, 1 if short else ROUNDS)
    for name, bound in (("dasktune", 0.9), ("unchecked", None), ("alone", None)):
        yield _ratio(f"{WORDS[name]} over the tree by hand", taken[name], taken["tree"], bound)
    spent, without = (median(cpu for _, cpu in taken[each]) for each in ("dasktune", "unchecked"))
    yield Figure(
        name="CPU time of the check over that of the study without it",
        value=spent / without - 1,
        at_most=0.2,
        note=f"{spent:.1f} s and {without:.1f} s",
    )


def _ratio(name: str, own: Sequence[Times], base: Sequence[Times], bound: float | None) -> Figure:
    ratios = sorted(ours / others for (ours, _), (others, _) in zip(own, base, strict=True))
    walls = [median(wall for wall, _ in times) for times in (own, base)]
    return Figure(
        name=name,
        value=median(ratios),
        unit="x",
        at_most=bound,
        note=f"median of {len(ratios)}, {ratios[0]:.2f} to {ratios[-1]:.2f}; "
        f"{walls[0]:.2f} s and {walls[1]:.2f} s",
    )


# ------------------------------------------------------------------------- contestants


def _schedules() -> list[list[dict[str, Any]]]:
    """Return the values of each trial at each epoch."""
    return [
        [{name: sequence(step) for name, sequence in trial.items()} for step in range(EPOCHS)]
        for trial in SPACE.grid()
    ]


def _trained(state: Any, first: int, values: Sequence[Mapping[str, Any]]) -> Any:
    """Train some epochs in a worker, on from a state; return the state and the last accuracy."""
    trainer = _trainer()
    trainer.build(state[1] if state else values[0])
    before = state[1] if state else values[0]
    if state:
        trainer.load_state_dict(state[0])
    accuracy = 0.0
    for now in values:
        trainer.setup({name: now[name] for name in now if now != before} or now)
        trainer.train()
        accuracy, before = trainer.evaluate()["accuracy"], now
    return trainer.state_dict(), before, accuracy


def _trainer() -> Any:
    import torch

    from examples.digits import DigitsTrainer

    torch.set_num_threads(1)
    trainer = DigitsTrainer()
    trainer.config, trainer.seed, trainer.device = {}, 0, "cpu"
    torch.manual_seed(0)
    return trainer


def _tree(folder: Path, *, merges: bool = True) -> int:
    """Train the stages of the tree as tasks, all submitted at once."""
    with bare_cluster(folder) as client:
        leaves: list[Any] = []

        def grow(parent: Any, first: int, schedules: list[list[dict[str, Any]]]) -> None:
            end = first
            while end < EPOCHS and all(each[end] == schedules[0][end] for each in schedules):
                end += 1
            if end > first:
                values = schedules[0][first:end]
                parent = client.submit(_trained, parent, first, values, pure=False)
            if end == EPOCHS:
                leaves.extend([parent] * len(schedules))
                return
            kinds: dict[str, list[list[dict[str, Any]]]] = {}
            for each in schedules:
                kinds.setdefault(repr(each[end]), []).append(each)
            for kind in kinds.values():
                grow(parent, end, kind)

        for group in [_schedules()] if merges else [[each] for each in _schedules()]:
            grow(None, 0, group)
        return len([accuracy for *_, accuracy in client.gather(leaves)])


def _alone(folder: Path) -> int:
    return _tree(folder, merges=False)


def _dasktune(folder: Path, *, check: bool = True) -> int:
    from examples.digits import DigitsTrainer

    study = dt.create_study(
        DigitsTrainer,
        name="digits",
        storage=folder / "store",
        metric="accuracy",
        direction="maximize",
    )
    study.optimize(dt.algos.Grid(SPACE, max_steps=EPOCHS), workers=WORKERS, check=check)
    return sum(trial.state.value == "COMPLETE" for trial in study.trials)


def _unchecked(folder: Path) -> int:
    return _dasktune(folder, check=False)


CONTESTANTS = {"tree": _tree, "alone": _alone, "dasktune": _dasktune, "unchecked": _unchecked}
WORDS = {
    "dasktune": "dasktune, a first study",
    "unchecked": "dasktune without the check",
    "alone": "each schedule alone, by plain Dask,",
}


if __name__ == "__main__":
    if CONTESTANT_OPTION in sys.argv:
        os.environ[SWITCH] = "on"
        run_contestant(CONTESTANTS)
    else:
        sys.exit(main("first_minute", measure))
