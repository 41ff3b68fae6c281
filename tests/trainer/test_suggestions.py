"""Training functions that suggest their values: what is drawn, and what is trained."""

from __future__ import annotations

import gc

import numpy as np
import optuna
import pytest
import torch
from torch import nn

import dasktune as dt
from dasktune.errors import ConfigurationError, TrainerError, UnknownValueError
from dasktune.sequences import Constant, MultiStep
from dasktune.space import DefinedByRun
from dasktune.space.define_by_run import OF_A_RUN, Suggesting
from dasktune.trainer.check_resume import check_resume
from dasktune.trainer.function import Run
from dasktune.trainer.lifecycle import run_alone
from tests.forked import fork_for_resume_checks

X = torch.linspace(-1, 1, 60).reshape(20, 3).sin()


def train(run):
    lr = run.suggest_float("lr", 1e-3, 1e-1, log=True)
    kind = run.suggest_categorical("optimizer", ["sgd", "adam"])
    model = nn.Linear(3, run.suggest_int("width", 2, 8, step=2))
    if kind == "sgd":
        optimizer = torch.optim.SGD(
            model.parameters(), lr=lr, momentum=run.suggest_float("momentum", 0.0, 0.9)
        )
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=run["lr"])
    run.track(model, optimizer)
    for _ in run.steps():
        optimizer.zero_grad()
        loss = model(X).square().mean()
        loss.backward()
        optimizer.step()
        run.report(loss=loss.item())


SPACE = DefinedByRun(train)


def test_the_space_has_what_the_function_suggests():
    drawn = [SPACE.sample(np.random.default_rng(seed)) for seed in range(20)]
    names = {tuple(each.sequences) for each in drawn}
    assert names == {
        ("lr", "optimizer", "width", "momentum"),
        ("lr", "optimizer", "width"),
    }
    assert all(type(value) is Constant for each in drawn for value in each.sequences.values())
    assert {each.params["width"] for each in drawn} == {2, 4, 6, 8}


def test_a_run_ends_the_suggestions_with_all_else_that_it_has():
    run = Run({}, seed=0, device="cpu", config={})
    assert all(hasattr(run, name) for name in {*OF_A_RUN, "device", "seed"})
    suggestions = {"suggest_float", "suggest_int", "suggest_categorical"}
    users = {name for name, each in vars(Run).items() if callable(each) and name[0] != "_"}
    assert users - OF_A_RUN - suggestions == {"get", "change", "begin", "end"}
    assert not OF_A_RUN & vars(Suggesting).keys()


def test_what_is_trained_is_what_was_drawn():
    seen = []

    def noting(run):
        seen.append((run.suggest_float("lr", 0, 1), run.suggest_int("width", 1, 9)))
        for _ in run.steps():
            run.report(loss=0)

    drawn = DefinedByRun(noting).sample(np.random.default_rng(3))
    run_alone(noting, drawn.sequences, 1)
    assert seen[-2] == seen[-1] == tuple(drawn.params.values())


@pytest.mark.parametrize("sampler", [None, "TPE"])
@pytest.mark.process
def test_a_study_gives_each_trial_what_it_is_alone(tmp_path, one_worker, sampler):
    options = {}
    if sampler:
        options["sampler"] = optuna.samplers.TPESampler(n_startup_trials=2, seed=0)
    study = dt.create_study(train, name="by run", storage=tmp_path, metric="loss")
    tuner = dt.algos.Random(train, trials=5, max_steps=3, seed=1, **options)
    study.optimize(tuner, client=one_worker, progress=False, check=False)
    assert len(study.trials) == 5
    assert {"momentum" in trial.params for trial in study.trials} == {True, False}
    for trial in study.trials:
        assert run_alone(train, trial.sequences, 3).metrics == trial.metrics
    study.close()
    gc.collect()


@pytest.mark.process
def test_the_check_passes(monkeypatch):
    fork_for_resume_checks(monkeypatch)
    values = {"lr": 0.05, "optimizer": "sgd", "width": 4, "momentum": 0.5}
    assert check_resume(train, values).ok


def test_a_changing_value_is_suggested_as_it_begins():
    seen = []

    def changing(run):
        seen.append(run.suggest_float("lr", 0.0, 1.0))
        for _ in run.steps():
            seen.append(run["lr"])
            run.report(loss=0)

    run_alone(changing, {"lr": MultiStep(0.5, milestones=[1], gamma=0.5)}, 2)
    assert seen == [0.5, 0.5, 0.25]


@pytest.mark.parametrize("use", [list, len, dict, lambda run: "b" in run, lambda run: run.get("b")])
def test_a_look_at_all_values_ends_the_suggestions(use):
    def function(run):
        a = run.suggest_float("a", 0, 1)
        assert run["a"] == run.get("a") == a
        assert "a" in run
        use(run)
        run.suggest_float("b", 0, 1)

    with pytest.raises(ConfigurationError, match="all values must be suggested before it") as error:
        DefinedByRun(function)
    used = function.__code__.co_firstlineno + 4
    assert f"at {__file__}:{used + 1}; move that suggestion up" in str(error.value)


def ends_in_a_branch(run):
    if run.suggest_categorical("kind", ["a", "b"]) == "a":
        run.track(nn.Linear(1, 1))
    else:
        run.suggest_float("b", 0, 1)
    for _ in run.steps():
        run.report(loss=0)


def suggests_in_a_helper(run):
    run.suggest_float("a", 0, 1)
    run.track(nn.Linear(1, 1))
    reads_before(run)


def suggests_in_a_loop(run):
    for place in range(run.suggest_int("layers", 2, 4)):
        run.track(nn.Linear(run.suggest_int(f"width{place}", 1, 8), 1))


def suggests_in_an_inner_function(run):
    def width():
        return run.suggest_int("width", 1, 8)

    run.suggest_float("a", 0, 1)
    if run.config:
        width()


@pytest.mark.parametrize(
    "function", [suggests_in_a_helper, suggests_in_a_loop, suggests_in_an_inner_function]
)
def test_a_suggestion_behind_another_use_of_the_run_is_refused(function):
    with pytest.raises(ConfigurationError, match="got a suggestion behind this line"):
        dt.algos.ASHA(function, trials=3, max_steps=4)


def test_a_suggestion_in_another_branch_does_no_harm():
    drawn = [DefinedByRun(ends_in_a_branch).sample(np.random.default_rng(n)) for n in range(9)]
    assert {tuple(each.params) for each in drawn} == {("kind",), ("kind", "b")}


def test_a_run_has_its_device_and_seed_before_the_suggestions():
    def function(run):
        torch.device(run.device)
        width = run.suggest_int("width", 1, 9)
        layer = nn.Linear(1, width).to(run.device)
        np.random.default_rng(run.seed)
        run.suggest_float("lr", 0, 1)
        run.track(layer)
        for _ in run.steps():
            run.report(loss=width)

    drawn = DefinedByRun(function).sample(np.random.default_rng(0))
    assert list(drawn.params) == ["width", "lr"]
    assert run_alone(function, drawn.sequences, 1).metrics == {1: {"loss": drawn.params["width"]}}


def first_uses_the_run(run):
    run.track(nn.Linear(1, 1))
    run.suggest_float("lr", 0, 1)


def suggests_sequences(run):
    run.suggest_categorical("lr", [0.1, MultiStep(0.1, [2], 0.1)])
    run.steps()


def reads_before(run):
    run.suggest_int("width", 1, 9)
    run["lr"]


def misspells(run):
    run.suggest_uniform("lr", 0, 1)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (reads_before, "'lr' must be suggested before it is read; suggested so far: width"),
        (misspells, "a run has no attribute 'suggest_uniform'; use run.suggest_float; suggest_"),
        (first_uses_the_run, "must suggest its values before it uses its run otherwise"),
        (suggests_sequences, "lr: choices of a training function must be plain values"),
    ],
)
def test_a_function_that_cannot_be_drawn_is_refused(function, words):
    with pytest.raises(ConfigurationError) as error:
        dt.algos.ASHA(function, trials=3, max_steps=4)
    assert words in str(error.value)


def failing(body, **values):
    def function(run):
        body(run)
        for _ in run.steps():
            run.suggest_float("lr", 0, 1)

    with pytest.raises(TrainerError) as error:
        run_alone(function, values or {"lr": 0.5}, 1)
    return error.value


def test_a_late_suggestion_says_where_it_belongs():
    error = failing(lambda run: run.suggest_int("width", 1, 3))
    assert isinstance(error, UnknownValueError)
    assert str(error).startswith("the value of 'width' must be in the tuner's space")
    assert str(error).endswith("this trial has: lr")
    assert str(failing(lambda run: None)) == (
        "'lr' must be suggested before the loop over run.steps(); in the loop, run['lr'] is its "
        "value"
    )


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (lambda run: run.suggest_float("lr", 0.6, 1.0), 0.5),
        (lambda run: run.suggest_int("lr", 0, 1), 0.5),
        (lambda run: run.suggest_categorical("lr", [0, 2]), False),
        (lambda run: run.suggest_float("lr", 0, 1), "0.5"),
    ],
)
def test_a_value_of_another_domain_is_refused(body, value):
    assert "the value of 'lr' must be in " in str(failing(body, lr=value))


def test_drawing_ends_at_the_device_if_no_suggestion_follows():
    def train(run):
        run.suggest_float("lr", 0.1, 1)
        run.device  # noqa: B018 - what follows may need it
        raise RuntimeError("needs a GPU")

    assert DefinedByRun(train).sample(np.random.default_rng(0)).params.keys() == {"lr"}


def test_a_suggestion_repeated_behind_another_use_is_no_new_one():
    def train(run):
        run.suggest_float("lr", 0.1, 1)
        for _ in run.steps():
            run.suggest_float("lr", 0.1, 1)

    assert DefinedByRun(train).sample(np.random.default_rng(0)).params.keys() == {"lr"}
