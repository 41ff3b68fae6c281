"""Sequences, tuners and calls for the writer of the fixture and for its tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from optuna.samplers import GPSampler, NSGAIISampler, RandomSampler, TPESampler

import dasktune as dt
from dasktune.algos import Tuner
from dasktune.algos.curves import CurveEnsemble, Persistence, Prediction
from dasktune.sequences import (
    Constant,
    Cosine,
    Cyclic,
    Exponential,
    Linear,
    MultiStep,
    Piecewise,
    Sequence,
    WarmRestarts,
    Warmup,
)
from dasktune.types import Decision, Extend, Finish, Now, Predict, Rank, Register, Report, Stop
from tests.compatibility import walk

RATE = dt.Float(0.01, 0.5, log=True)
FLOATS = dt.Space(lr=RATE, momentum=dt.Float(0.0, 0.6))
SPACE = dt.Space(
    lr=dt.Choice([dt.Family(MultiStep, init=RATE, milestones=[3], gamma=0.5), RATE]),
    batch_size=dt.Int(16, 64, step=16),
    decay=[0.5, Exponential(0.5, gamma=0.9)],
)
STEEP = dt.Space(lr=[0.4, 0.2, 0.1, Piecewise([0.1, 0.4], boundaries=[3])], momentum=[0.0, 0.5])

SEQUENCES: dict[str, Sequence] = {
    "Constant": Constant(0.1),
    "Constant of text": Constant("adam"),
    "Constant of None": Constant(None),
    "Constant of bool": Constant(True),
    "Constant of int": Constant(3),
    "Piecewise": Piecewise([0.1, 0.2], boundaries=[4]),
    "MultiStep": MultiStep(0.1, milestones=[3, 6], gamma=0.5),
    "Linear": Linear(0.1, 0.0, period=8),
    "Exponential": Exponential(0.1, gamma=0.9),
    "Cosine": Cosine(0.1, period=8, final=0.01),
    "WarmRestarts": WarmRestarts(0.1, period=4),
    "Cyclic": Cyclic(0.01, 0.1, half_period=3),
    "Warmup": Warmup(3, 0.1) >> Constant(0.1),
    "Ended": Linear(0.1, 0.0, period=8)[:5],
    "Rest": Exponential(0.1, gamma=0.9)[5:],
    "Joined": Warmup(3, 0.1) >> Exponential(0.1, gamma=0.9),
}

CONFIGURATIONS: dict[str, Mapping[str, Sequence]] = {
    "one value": {"lr": Constant(0.1)},
    "three kinds": {"lr": Constant(0.1), "name": Constant("adam"), "flag": Constant(False)},
    "nothing": {},
    **{f"two with {name}": {"lr": one, "n": Constant(2)} for name, one in SEQUENCES.items()},
}
"""Hyper-parameters whose state keys are kept."""

KEY_STEPS = (0, 1, 3, 4, 5)

TUNERS: dict[str, Callable[[], Tuner]] = {
    "Grid": lambda: dt.algos.Grid(STEEP, max_steps=6),
    "Random": lambda: dt.algos.Random(SPACE, trials=6, max_steps=6, seed=3),
    "Random by TPE": lambda: dt.algos.Random(
        FLOATS, trials=8, max_steps=3, sampler=TPESampler(n_startup_trials=3)
    ),
    "Random by a seeded sampler": lambda: dt.algos.Random(
        FLOATS, trials=6, max_steps=3, sampler=RandomSampler(seed=7)
    ),
    "Random by NSGA-II": lambda: dt.algos.Random(
        FLOATS, trials=8, max_steps=2, sampler=NSGAIISampler(population_size=4)
    ),
    "SHA": lambda: dt.algos.SHA(SPACE, trials=9, max_steps=9, min_steps=1, eta=3),
    "SHA with brackets": lambda: dt.algos.SHA(
        SPACE, trials=9, max_steps=9, min_steps=1, eta=3, brackets=2
    ),
    "Milestones": lambda: dt.algos.Milestones(
        SPACE, keep={2: 6, 5: 3}, max_steps=9, trials=10, seed=1
    ),
    "Hyperband": lambda: dt.algos.Hyperband(SPACE, trials=14, max_steps=9, min_steps=1, eta=3),
    "AsyncHyperband": lambda: dt.algos.AsyncHyperband(
        SPACE, trials=14, max_steps=9, min_steps=1, eta=3
    ),
    "ASHA": lambda: dt.algos.ASHA(
        SPACE, trials=13, max_steps=9, min_steps=1, eta=3, brackets="aggressive"
    ),
    "ASHA by TPE": lambda: dt.algos.ASHA(
        SPACE, trials=16, max_steps=9, min_steps=1, eta=3, sampler=TPESampler(n_startup_trials=4)
    ),
    "StoppingASHA": lambda: dt.algos.StoppingASHA(
        SPACE, trials=16, max_steps=9, min_steps=1, eta=3
    ),
    "MedianStopping": lambda: dt.algos.MedianStopping(
        SPACE, trials=10, max_steps=8, every=2, min_trials=3
    ),
    "PercentileStopping": lambda: dt.algos.PercentileStopping(
        SPACE, trials=10, max_steps=8, percentile=25.0, every=2, min_trials=3
    ),
    "PatienceStopping": lambda: dt.algos.PatienceStopping(
        SPACE, trials=8, max_steps=12, patience=3, every=1
    ),
    "Bandit": lambda: dt.algos.Bandit(SPACE, trials=8, max_steps=8, every=2),
    "EarlyTerm": lambda: dt.algos.EarlyTerm(SPACE, trials=8, max_steps=8, every=2, delta=0.3),
    "EarlyTerm by Persistence": lambda: dt.algos.EarlyTerm(
        SPACE, trials=6, max_steps=8, every=2, predictor=Persistence()
    ),
    "EarlyTerm by CurveEnsemble": lambda: dt.algos.EarlyTerm(
        SPACE, trials=4, max_steps=8, every=4, predictor=CurveEnsemble()
    ),
    "POP": lambda: dt.algos.POP(SPACE, trials=8, max_steps=12, every=2, bounds=(0.0, 1.0)),
    "POP with a target": lambda: dt.algos.POP(
        SPACE, target=0.05, within=60.0, trials=8, max_steps=8, every=2, kill=0.15
    ),
    "POP with barriers": lambda: dt.algos.POP(
        SPACE, target=0.001, trials=6, max_steps=8, every=2, barrier=True
    ),
    "PBT": lambda: dt.algos.PBT(SPACE, population=5, max_steps=12, every=3),
    "PBT with a window": lambda: dt.algos.PBT(
        FLOATS, population=5, max_steps=12, every=3, window=3, populations=2, fixed=["momentum"]
    ),
    "Repeats": lambda: dt.algos.Repeats(dt.algos.SHA(SPACE, trials=4, max_steps=4, eta=2), seeds=2),
    "Repeats of POP": lambda: dt.algos.Repeats(
        dt.algos.POP(SPACE, target=0.01, trials=4, max_steps=8, every=2, least=0.0), seeds=2
    ),
}

STUDY_TUNERS: dict[str, list[Callable[[], Tuner]]] = {
    "finished": [
        walk.tuner,
        lambda: dt.algos.ASHA(
            STEEP, trials=9, max_steps=9, min_steps=1, eta=3, brackets="aggressive"
        ),
    ],
    "interrupted": [lambda: dt.algos.SHA(FLOATS, trials=8, max_steps=8, eta=2)],
    "population": [lambda: dt.algos.PBT(FLOATS, population=5, max_steps=8, every=2)],
    "pop": [lambda: dt.algos.POP(FLOATS, trials=6, max_steps=8, every=2, bounds=(0.0, 10.0))],
    "early-term": [lambda: dt.algos.EarlyTerm(FLOATS, trials=6, max_steps=8, every=2, delta=0.3)],
}
"""What the studies of the fixture are run with, one after the other."""

IDENTITIES_ONLY: dict[str, Callable[[], Tuner]] = {
    "Random by GPSampler": lambda: dt.algos.Random(
        FLOATS, trials=8, max_steps=3, sampler=GPSampler(seed=1)
    ),
    "Grid with a filter": lambda: dt.algos.Grid(STEEP, max_steps=6, filter=is_wanted),
    "Random of a function": lambda: dt.algos.Random(define, trials=4, max_steps=3),
}
"""Tuners whose calls are not kept."""


def is_wanted(values: Mapping[str, object]) -> bool:
    """Return whether a grid tries these values."""
    return values["momentum"] == 0.0


def define(trial: Any) -> dict[str, object]:
    """Return a configuration that is defined by running this."""
    return {"lr": trial.suggest_float("lr", 0.1, 0.2), "n": trial.suggest_int("n", 1, 3)}


def loss_of(trial: int, step: int, sequences: Mapping[str, Sequence]) -> float:
    """Return the loss that a trial reports in the kept calls."""
    rate = sequences["lr"](max(step - 1, 0))
    assert isinstance(rate, float)
    return round(abs(rate - 0.12) + 1.0 / (step + 1 + trial % 3), 9)


def decision_to_json(decision: Decision) -> dict[str, Any]:
    """Return all of a decision as JSON."""
    match decision:
        case Register():
            found: dict[str, Any] = {
                "do": "register",
                "trial": decision.trial,
                "sequences": {name: one.to_json() for name, one in decision.sequences.items()},
                "max_steps": decision.max_steps,
                "params": dict(decision.params),
                "point": dict(decision.point),
                "domains": {name: dict(one) for name, one in decision.domains.items()},
                "seed": decision.seed,
            }
        case Extend():
            found = {"do": "extend", "trial": decision.trial, "until": decision.until}
            found |= {"priority": decision.priority, "reports": list(decision.reports)}
        case Stop() | Predict():
            found = {"do": type(decision).__name__.lower(), "trial": decision.trial}
        case Rank():
            found = {"do": "rank", "trial": decision.trial, "priority": decision.priority}
        case Finish():
            found = {"do": "finish"}
    return json.loads(json.dumps(found))


def perform(tuner: Tuner, call: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Make one of the kept calls of a tuner; return its decisions as JSON."""
    tuner.feed_proposals(call["proposals"])
    match call["call"]:
        case "AskCall":
            decisions = tuner.ask(call["capacity"])
        case "TellCall":
            now = None if call["now"] is None else Now.from_json(call["now"])
            report = Report(
                trial=call["trial"],
                step=call["step"],
                metrics={"loss": call["loss"]},
                losses=(call["loss"],),
                now=now,
            )
            decisions = tuner.tell(report)
        case "AnswerCall":
            given = call["prediction"]
            prediction = None if given is None else Prediction.from_json(given)
            decisions = tuner.tell_prediction(call["trial"], prediction)
        case "FailCall":
            decisions = tuner.tell_failure(call["trial"])
        case "TimeCall":
            decisions = tuner.tell_time(call["seconds"])
        case kind:
            raise AssertionError(f"unknown call {kind!r}")
    tuner.take_proposals()
    return [decision_to_json(one) for one in decisions]
