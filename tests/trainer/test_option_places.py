"""The options that a training function sets when a hyper-parameter changes."""

import numpy as np
import pytest
import torch
from torch import nn

from dasktune.errors import TrainerError
from dasktune.sequences import Piecewise, as_sequence
from dasktune.storage.codec import decode, encode
from dasktune.trainer.function import trainer_of
from dasktune.trainer.lifecycle import TrainerRun, run_alone

X = torch.linspace(-1, 1, 12).reshape(6, 2)
DECAY = {"weight_decay": Piecewise([0.0, 0.1], [2])}
WHOLE_DECAY = {"weight_decay": Piecewise([0, 1], [2])}
RATE = {"lr": Piecewise([0.05, 0.5], [2])}
RATES = {**RATE, "lr_d": 0.05}
SIZE = {"batch_size": Piecewise([2, 3], [2])}
CONSTANT_RATE = 0.05


def report(run, *optimizers):
    """Report the rates and decays of all groups."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    rates = {f"lr_{index}": group["lr"] for index, group in enumerate(groups)}
    run.report(**rates, **{f"decay_{i}": group["weight_decay"] for i, group in enumerate(groups)})


def optimizer_of(model, decay):
    parts = [{"params": [model.weight], "weight_decay": decay}]
    return torch.optim.SGD([*parts, {"params": [model.bias], "weight_decay": 0.0}], lr=1.0)


def no_decay_of_the_bias(run):
    model = nn.Linear(2, 1)
    optimizer = optimizer_of(model, run["weight_decay"])
    run.track(model, optimizer)
    for _ in run.steps():
        report(run, optimizer)


def constant_rate_beside(run):
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    first = torch.optim.SGD(model.parameters(), lr=run["lr"])
    second = torch.optim.SGD(other.parameters(), lr=0.05)
    third = torch.optim.SGD(other.parameters(), lr=CONSTANT_RATE)
    run.track(model, other, first, second, third)
    for _ in run.steps():
        report(run, first, second, third)


def one_rate_for_two_groups(run):
    model = nn.Linear(2, 1)
    groups = [{"params": [model.weight], "weight_decay": 0.1}, {"params": [model.bias]}]
    optimizer = torch.optim.AdamW(groups, lr=run["lr"])
    run.track(model, optimizer)
    for _ in run.steps():
        report(run, optimizer)


def one_rate_for_two_optimizers(run):
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(net.parameters(), lr=run["lr"]) for net in (model, other)]
    run.track(model, other, *optimizers)
    for _ in run.steps():
        report(run, *optimizers)


def two_equal_rates(run):
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    first = torch.optim.SGD(model.parameters(), lr=run["lr"])
    second = torch.optim.SGD(other.parameters(), lr=run["lr_d"])
    run.track(model, other, first, second)
    for _ in run.steps():
        report(run, first, second)


def with_a_scheduler(run):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=run["lr"])
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    run.track(model, optimizer, scheduler)
    for _ in run.steps():
        report(run, optimizer)


def computed_rate(run):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=np.float64(run["lr"]).item())
    run.track(model, optimizer)
    for _ in run.steps():
        report(run, optimizer)


@pytest.mark.parametrize(
    ("function", "values", "names"),
    [
        (no_decay_of_the_bias, DECAY, {"decay_0"}),
        (constant_rate_beside, RATE, {"lr_0"}),
        (one_rate_for_two_groups, RATE, {"lr_0", "lr_1"}),
        (one_rate_for_two_optimizers, RATE, {"lr_0", "lr_1"}),
        (two_equal_rates, RATES, {"lr_0"}),
        (with_a_scheduler, RATE, {"lr_0"}),
        (computed_rate, RATE, {"lr_0"}),
    ],
)
@pytest.mark.parametrize("split", [None, 1, 2])
def test_a_change_is_set_where_the_value_was_given(function, values, names, split):
    metrics = metrics_of(function, values, 3, split)
    before, after = metrics[2], metrics[3]
    (value,) = {sequence(2) for name, sequence in sequences(values).items() if name != "lr_d"}
    assert after == {name: value if name in names else before[name] for name in before}


def sequences(values):
    return {name: as_sequence(value) for name, value in values.items()}


def metrics_of(function, values, steps, split=None):
    """Return the metrics of a function that goes on from a state after `split` steps."""
    alone = run_alone(function, values, steps, states_at=[split] if split else [])
    if split is None:
        return alone.metrics

    def at(step):
        return {name: sequence(step) for name, sequence in sequences(values).items()}

    snapshot = encode(alone.states[split])
    run = TrainerRun.resume(
        trainer_of(function),
        step=split,
        first_values=at(0),
        last_values=at(split - 1),
        state=decode(snapshot.document, snapshot.data),
        config={},
        seed=0,
    )
    metrics = {step: alone.metrics[step] for step in range(1, split + 1)}
    for step in range(split, steps):
        run.advance(at(step))
        metrics[run.step] = run.evaluate()
    assert metrics == alone.metrics
    return metrics


def two_computed_rates(run):
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    rate = np.float64(run["lr"]).item()
    first = torch.optim.SGD(model.parameters(), lr=rate)
    second = torch.optim.SGD(other.parameters(), lr=rate)
    run.track(model, other, first, second)
    for _ in run.steps():
        if run.config.get("reads"):
            run.state["lr"] = run["lr"]
        if run.config.get("sets"):
            first.param_groups[0]["lr"] = run["lr"]
        report(run, first, second)


def test_a_change_of_unclear_origin_is_refused():
    words = (
        "the value of 'lr' changes to 0.5, and it is not known which of the options with the old "
        "value came from it; set the right ones in the loop: first.param_groups[0]['lr'] = "
        "run['lr'] or second.param_groups[0]['lr'] = run['lr']"
    )
    for config in ({}, {"reads": True}):
        with pytest.raises(TrainerError) as error:
            run_alone(two_computed_rates, RATE, 4, config=config)
        assert str(error.value) == words
    metrics = run_alone(two_computed_rates, RATE, 4, config={"sets": True}).metrics
    assert (metrics[4]["lr_0"], metrics[4]["lr_1"]) == (0.5, 0.05)


def whole_rate_for_two_groups(run):
    model = nn.Linear(2, 1)
    groups = [{"params": [model.weight]}, {"params": [model.bias], "weight_decay": 0.25}]
    optimizer = torch.optim.SGD(groups, lr=run["lr"])
    run.track(model, optimizer)
    for _ in run.steps():
        report(run, optimizer)


def whole_decay_of_one_group(run):
    model = nn.Linear(2, 1)
    groups = [{"params": [model.weight], "weight_decay": run["weight_decay"]}]
    optimizer = torch.optim.SGD([*groups, {"params": [model.bias]}], lr=1.0)
    run.track(model, optimizer)
    for _ in run.steps():
        report(run, optimizer)


def test_equal_integers_are_those_of_one_default_or_refused():
    metrics = run_alone(whole_rate_for_two_groups, {"lr": Piecewise([1, 2], [2])}, 3).metrics
    assert (metrics[3]["lr_0"], metrics[3]["lr_1"]) == (2, 2)
    with pytest.raises(TrainerError, match="which of the options with the old value"):
        run_alone(whole_decay_of_one_group, WHOLE_DECAY, 3)


def two_loaders(run):
    first = run.loader(X, batch_size=run["batch_size"])
    second = run.loader(X, batch_size=2)
    for _ in run.steps():
        if run.config.get("sets"):
            first.batch_size = run["batch_size"]
        run.report(first=first.batch_size, second=second.batch_size)


def test_a_batch_size_that_two_loaders_have_is_refused():
    with pytest.raises(TrainerError, match=r"loader_0\.batch_size = run"):
        run_alone(two_loaders, SIZE, 3)
    metrics = run_alone(two_loaders, SIZE, 3, config={"sets": True}).metrics
    assert metrics[3] == {"first": 3, "second": 2}
    large = {"batch_size": Piecewise([1000, 2000], [2])}
    assert run_alone(two_loaders, large, 3).metrics[3] == {"first": 2000, "second": 2}
