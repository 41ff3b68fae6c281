"""Training functions whose variables hold what a state cannot hold as plain data."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tests.trainer.resume_kinds.kind import named, refused, stopped
from tests.trainer.resume_kinds.smallest import LATE, network, samples, target


def untracked_generator(run: Any) -> None:
    """A generator that is made before the loop and is not tracked"""
    weight, noise = run.state.setdefault("weight", np.ones(3)), np.random.default_rng(run.seed)
    for _ in run.steps():
        weight -= run["lr"] * (weight + noise.random())
        run.report(loss=float(weight.sum()))


def untracked_optimizer(run: Any) -> None:
    """A tracked model, and an optimizer with momentum that is not"""
    x, y = samples()
    model = run.track(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=run["lr"], momentum=0.9)
    for _ in run.steps():
        optimizer.param_groups[0]["lr"] = run["lr"]
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        run.report(loss=loss.detach())


def generator_in_the_loop(run: Any) -> None:
    """A generator that is made in a late step, and drawn from in each one after it"""
    run.state["weight"], late_noise = 1.0, None
    for step in run.steps():
        if step == LATE:
            late_noise = random.Random(run.seed)
        push = late_noise.random() if late_noise else 0.0
        run.state["weight"] -= run["lr"] * (run.state["weight"] - push)
        run.report(loss=run.state["weight"])


def drawing(seed: int) -> Generator[float, None, None]:
    source = np.random.default_rng(seed)
    while True:
        yield float(source.normal())


def drawn_lazily(run: Any) -> None:
    """A Python generator that draws, made in the first step"""
    draws: Any = None
    run.state["weight"] = 1.0
    for _ in run.steps():
        if draws is None:
            draws = drawing(run.seed)
        run.state["weight"] -= run["lr"] * (run.state["weight"] - next(draws))
        run.report(loss=run.state["weight"])


def counting_iterator(run: Any) -> None:
    """An `itertools.count` that is made before the loop"""
    run.state["weight"], numbers = 1.0, itertools.count()
    for step in run.steps():
        run.state["weight"] -= run["lr"] * (run.state["weight"] - target(next(numbers) - step))
        run.report(loss=run.state["weight"])


class Meter:
    """A running mean."""

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def add(self, value: float) -> float:
        self.total, self.count = self.total + value, self.count + 1
        return self.total / self.count


def own_object(run: Any) -> None:
    """An object of one's own that averages from a late step on"""
    run.state["weight"], meter = 1.0, Meter()
    for step in run.steps():
        mean = meter.add(run.state["weight"]) if step >= LATE else 0.0
        run.state["weight"] -= run["lr"] * (run.state["weight"] - target(step) + mean)
        run.report(loss=run.state["weight"])


@dataclass
class Stats:
    """The memory of a loop."""

    best: float = float("inf")
    bad: int = 0


def own_dataclass(run: Any) -> None:
    """A dataclass with the best loss and the bad steps"""
    run.state["weight"], stats = 1.0, Stats()
    for step in run.steps():
        run.state["weight"] -= run["lr"] * (run.state["weight"] - target(step)) / (1 + stats.bad)
        loss = run.state["weight"] ** 2
        if loss < stats.best:
            stats.best = loss
        elif step > LATE:
            stats.bad += 1
        run.report(loss=loss)


def counting() -> Callable[[], int]:
    calls = 0

    def count() -> int:
        nonlocal calls
        calls += 1
        return calls

    return count


def closure_of_factory(run: Any) -> None:
    """A function with a counter in its closure, called from a late step on"""
    run.state["weight"], count = 1.0, counting()
    for step in run.steps():
        push = count() / 50 if step >= LATE else 0.0
        run.state["weight"] -= run["lr"] * (run.state["weight"] - target(step) + push)
        run.report(loss=run.state["weight"])


def appended(rows: list[int], row: int) -> int:
    rows.append(row)
    return len(rows)


def partial_of_list(run: Any) -> None:
    """A partial function of a list that grows from a late step on"""
    run.state["weight"], augment = 1.0, functools.partial(appended, [])
    for step in run.steps():
        push = augment(step) / 50 if step >= LATE else 0.0
        run.state["weight"] -= run["lr"] * (run.state["weight"] - target(step) + push)
        run.report(loss=run.state["weight"])


def method_of_object(run: Any) -> None:
    """A bound method of an object that counts from a late step on"""
    run.state["weight"], augment = 1.0, Meter().add
    for step in run.steps():
        push = augment(step / 50) if step >= LATE else 0.0
        run.state["weight"] -= run["lr"] * (run.state["weight"] - target(step) + push)
        run.report(loss=run.state["weight"])


def summing() -> Generator[float, float, None]:
    total = 0.0
    while True:
        total += yield total


def coroutine_sums(run: Any) -> None:
    """A Python generator that sums what it is sent from a late step on"""
    run.state["weight"], sums = 1.0, None
    for step in run.steps():
        if step == LATE:
            sums = summing()
            next(sums)
        push = sums.send(0.02) if sums else 0.0
        run.state["weight"] -= run["lr"] * (run.state["weight"] - target(step) + push)
        run.report(loss=run.state["weight"])


def module_made_late(run: Any) -> None:
    """A second model that is made in a late step and trained by hand"""
    x, y = samples()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=run["lr"])
    run.track(model, optimizer)
    late_model = None
    for step in run.steps():
        if step == LATE:
            late_model = network()
        outputs = model(x) if late_model is None else model(x) + 0.1 * late_model(x)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(outputs, y)
        loss.backward()
        optimizer.step()
        if late_model is not None:
            with torch.no_grad():
                for parameter in late_model.parameters():
                    if parameter.grad is not None:
                        parameter.sub_(0.1 * parameter.grad)
                    parameter.grad = None
        run.report(loss=loss.detach())


def number_on_optimizer(run: Any) -> None:
    """A number on an optimizer that counts bad steps from a late step on"""
    x, y = samples()
    model = network()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=run["lr"])
    optimizer.bad = 0
    run.track(model, optimizer)
    for step in run.steps():
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y) / (1 + optimizer.bad)
        loss.backward()
        optimizer.step()
        optimizer.bad += step >= LATE
        run.report(loss=loss.detach())


CALLS = {"count": 0}


def global_counter(run: Any) -> None:
    """A counter in a global dict, which moves from a late step on"""
    run.state["weight"] = 1.0
    for step in run.steps():
        CALLS["count"] += step >= LATE
        run.state["weight"] -= run["lr"] * (run.state["weight"] - CALLS["count"] / 50)
        run.report(loss=run.state["weight"])


def function_attribute(run: Any) -> None:
    """A counter in an attribute of a function that the training function calls"""
    run.state["weight"] = 1.0
    for step in run.steps():
        if step >= LATE:
            attributed.calls += 1  # type: ignore[attr-defined]
        run.state["weight"] -= run["lr"] * (run.state["weight"] - attributed())
        run.report(loss=run.state["weight"])


def attributed() -> float:
    return attributed.calls / 50  # type: ignore[attr-defined,no-any-return]


attributed.calls = 0  # type: ignore[attr-defined]


def remembered(row: int, seen: list[int] = []) -> float:  # noqa: B006
    if row >= LATE:
        seen.append(row)
    return len(seen) / 50


def default_list(run: Any) -> None:
    """A list in a default argument that grows from a late step on"""
    run.state["weight"] = 1.0
    for step in run.steps():
        run.state["weight"] -= run["lr"] * (run.state["weight"] - remembered(step))
        run.report(loss=run.state["weight"])


def generator_in_dict(run: Any) -> None:
    """A generator in a dict of parts, made in a late step"""
    run.state["weight"] = 1.0
    parts: dict[str, Any] = {"rows": 3}
    for step in run.steps():
        if step == LATE:
            parts["drawn_late"] = np.random.default_rng(run.seed)
        push = parts["drawn_late"].random() if "drawn_late" in parts else 0.0
        run.state["weight"] -= run["lr"] * (run.state["weight"] - push)
        run.report(loss=run.state["weight"])


def breaking(run: Any) -> None:
    """Early stopping by `break`: the loop ends by itself"""
    run.state["weight"] = 1.0
    for step in run.steps():
        run.state["weight"] -= run["lr"] * (run.state["weight"] - target(step))
        run.report(loss=run.state["weight"])
        if step == 30:
            break


def returning(run: Any) -> None:
    """The function returns from the loop after a late step"""
    run.state["weight"] = 1.0
    for step in run.steps():
        run.state["weight"] -= run["lr"] * (run.state["weight"] - target(step))
        run.report(loss=run.state["weight"])
        if step == 30:
            return


def two_phases(run: Any) -> None:
    """Two loops over one iterator of the steps: the second goes on where the first broke off"""
    steps, weight, pushes = iter(run.steps()), 1.0, 0.0
    for step in steps:
        weight -= run["lr"] * (weight - target(step))
        run.report(loss=weight)
        if step == LATE:
            break
    for step in steps:
        pushes = 0.9 * pushes + weight - target(step)
        weight -= 0.1 * run["lr"] * pushes
        run.report(loss=weight)


def phases_of_a_list(run: Any) -> None:
    """A `for` loop over phases, each of which takes ten steps from one iterator"""
    steps, weight = iter(run.steps()), 1.0
    for scale in (1.0, 0.3, 0.9, 0.1, 0.7, 0.2, 0.8, 0.4, 0.6, 0.5):
        for step in steps:
            weight -= run["lr"] * (weight - scale * target(step))
            run.report(loss=weight)
            if step % 10 == 9:
                break
    for _ in steps:
        run.report(loss=weight)


def epochs_of_steps(run: Any) -> None:
    """Epochs of four steps each, counted by a `for` loop around"""
    steps, weight = iter(run.steps()), 1.0
    for epoch in range(1000):
        for step in steps:
            weight -= run["lr"] * (weight - target(step) / (epoch + 1))
            run.report(loss=weight)
            if step % 4 == 3:
                break


KINDS = (
    refused(untracked_generator, "noise"),
    refused(untracked_optimizer, "optimizer"),
    named(generator_in_the_loop, "late_noise"),
    named(drawn_lazily, "draws"),
    named(counting_iterator, "numbers"),
    named(own_object, "meter"),
    named(own_dataclass, "stats"),
    named(closure_of_factory, "count"),
    named(partial_of_list, "augment"),
    named(method_of_object, "augment"),
    named(coroutine_sums, "sums"),
    named(module_made_late, "late_model"),
    named(number_on_optimizer, "bad"),
    named(global_counter, "CALLS"),
    named(function_attribute, "calls"),
    named(default_list, "seen"),
    named(generator_in_dict, "drawn_late"),
    stopped(breaking, "loop"),
    stopped(returning, "loop"),
    named(two_phases, "in the loop at line"),
    named(phases_of_a_list, "scale"),
    named(epochs_of_steps, "epoch"),
)
