"""Training functions that carry numbers, arrays or containers in their variables: exact."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import numpy as np
import torch

from tests.trainer.resume_kinds.kind import exact
from tests.trainer.resume_kinds.smallest import LATE, network, samples, target


def best_loss(run: Any) -> None:
    """The best loss so far is reported"""
    run.state["weight"], best = 1.0, float("inf")
    for step in run.steps():
        run.state["weight"] -= run["lr"] * (run.state["weight"] - target(step))
        best = min(best, (run.state["weight"] - 0.3) ** 2 + 1 / (step + 1))
        run.report(loss=best)


def early_stopping(run: Any) -> None:
    """Early stopping by patience: training rests once the loss is bad for 20 steps"""
    run.state["weight"], best, bad = 1.0, float("inf"), 0
    for step in run.steps():
        loss = (run.state["weight"] - target(step)) ** 2
        if bad < 20:
            run.state["weight"] -= run["lr"] * (run.state["weight"] - target(step))
        best, bad = (loss, 0) if loss < best else (best, bad + 1)
        run.report(loss=run.state["weight"] ** 2)


def plateau(run: Any) -> None:
    """A plateau rule: `best`, `bad` and `scale`"""
    run.state["weight"], best, bad, scale = 1.0, float("inf"), 0, 1.0
    for step in run.steps():
        run.state["weight"] -= scale * run["lr"] * (run.state["weight"] - target(step))
        loss = run.state["weight"] ** 2
        best, bad = (loss, 0) if loss < best else (best, bad + 1)
        if bad >= 5:
            scale, bad = scale * 0.7, 0
        run.report(loss=loss)


def late_average(run: Any) -> None:
    """An average of the weights that is made when it is first needed"""
    weight, average = run.state.setdefault("weight", np.ones(3)), None
    for step in run.steps():
        weight -= run["lr"] * (weight - target(step))
        if step == 25:
            average = weight.copy()
        elif average is not None:
            average += 0.05 * (weight - average)
        run.report(loss=float((weight if average is None else average).sum()))


def own_momentum(run: Any) -> None:
    """Momentum by hand in an array, all in variables"""
    weight, momentum = np.ones(3), np.zeros(3)
    for step in run.steps():
        momentum = 0.9 * momentum + 0.1 * (weight - target(step))
        weight = weight - run["lr"] * momentum
        run.report(loss=float(weight.sum()))


def arrays_in_place(run: Any) -> None:
    """Arrays that are changed in place"""
    weight, momentum = np.ones(3), np.zeros(3)
    for step in run.steps():
        momentum *= 0.9
        momentum += 0.1 * (weight - target(step))
        weight -= run["lr"] * momentum
        run.report(loss=float(weight.sum()))


def own_tensors(run: Any) -> None:
    """A model that is tracked, and an average of its weights in tensors that are not"""
    x, y = samples()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=run["lr"])
    run.track(model, optimizer)
    means = [parameter.detach().clone() for parameter in model.parameters()]
    for _ in run.steps():
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        for mean, parameter in zip(means, model.parameters(), strict=True):
            mean.lerp_(parameter.detach(), 0.1)
        run.report(loss=sum(float(mean.sum()) for mean in means))


def history_list(run: Any) -> None:
    """A list of all losses, of which the last ten decide"""
    weight, losses = 1.0, list[float]()
    for step in run.steps():
        weight -= run["lr"] * (weight - target(step) + 0.1 * sum(losses[-10:]) / 10)
        losses.append(weight**2)
        run.report(loss=losses[-1])


def counting_dict(run: Any) -> None:
    """A dict of counts that gets keys late"""
    weight, counts = 1.0, dict[str, int]()
    for step in run.steps():
        sign = "up" if target(step) > 0 else "down"
        counts[sign] = counts.get(sign, 0) + 1
        weight -= run["lr"] * (weight - counts[sign] / (step + 1))
        run.report(loss=weight**2)


def window_deque(run: Any) -> None:
    """A `deque` of the last losses"""
    weight, window = 1.0, deque[float](maxlen=8)
    for step in run.steps():
        weight -= run["lr"] * (weight - target(step) + 0.05 * sum(window))
        window.append(weight)
        run.report(loss=weight**2)


def seen_set(run: Any) -> None:
    """A set of the rows that were seen"""
    weight, seen = 1.0, set[int]()
    for step in run.steps():
        seen.add(step * step % 37)
        weight -= run["lr"] * (weight - len(seen) / 37)
        run.report(loss=weight**2)


def nested_containers(run: Any) -> None:
    """A dict of lists of arrays"""
    weight = 1.0
    parts: dict[str, Any] = {"means": [np.zeros(2), np.zeros(2)], "rows": [(0, "a")]}
    for step in run.steps():
        parts["means"][step % 2] += 0.1 * (weight - parts["means"][step % 2])
        parts["rows"].append((step, "b"))
        pull = float(parts["means"][0].sum()) + 0.01 * len(parts["rows"])
        weight -= run["lr"] * (weight - target(step) + 0.1 * pull)
        run.report(loss=weight**2)


def library_containers(run: Any) -> None:
    """`Counter`, `defaultdict` and `OrderedDict`"""
    weight, recent = 1.0, OrderedDict[int, float]()
    counts, sums = Counter[int](), defaultdict[int, float](float)
    for step in run.steps():
        counts[step % 3] += 1
        sums[step % 2] += weight
        recent[step % 5] = weight
        recent.move_to_end(step % 5)
        pull = counts[0] / (step + 1) + 0.01 * sums[0] + next(iter(recent.values()))
        weight -= run["lr"] * (weight - target(step) + 0.1 * pull)
        run.report(loss=weight**2)


def run_epochs(run: Any, weight: float) -> None:
    previous = 0.0
    for step in run.steps():
        weight -= run["lr"] * (weight - target(step) + 0.3 * previous)
        previous = weight
        run.report(loss=weight**2)


def in_helper(run: Any) -> None:
    """The loop and its variables stand in a function that the training function calls"""
    run_epochs(run, 1.0)


def inner_function(run: Any) -> None:
    """A function in the function counts in a variable of the outer one"""
    weight, calls = 1.0, 0

    def pull() -> float:
        nonlocal calls
        calls += 1
        return weight - target(calls)

    for _ in run.steps():
        weight -= run["lr"] * pull()
        run.report(loss=weight**2)


def swapped_pair(run: Any) -> None:
    """Two variables that are swapped in each step"""
    first, second = 1.0, 0.5
    for step in run.steps():
        first, second = second, first - run["lr"] * (first + second - target(step))
        run.report(loss=first)


def phases(run: Any) -> None:
    """A string and a flag that change late"""
    weight, phase, is_cooling = 1.0, "warm", False
    for step in run.steps():
        if step == LATE:
            phase = "main"
        if phase == "main" and weight < 0:
            is_cooling = True
        weight -= run["lr"] * (weight - target(step)) * (0.5 if is_cooling else 1.0)
        run.report(loss=weight**2)


def decaying_epsilon(run: Any) -> None:
    """An exploration rate that decays from a late step on"""
    weight, epsilon = 1.0, 1.0
    for step in run.steps():
        if step > LATE:
            epsilon *= 0.95
        weight -= run["lr"] * (weight - epsilon * target(step))
        run.report(loss=weight**2)


def numbers_of_numpy(run: Any) -> None:
    """Numbers of NumPy, a complex one and a long integer"""
    weight, phase, code = np.float32(1.0), 1 + 0j, 1
    for _ in run.steps():
        phase *= complex(0.99, 0.1)
        code = code * 6364136223846793005 % 2**127
        weight = np.float32(weight - run["lr"] * (weight - phase.real + code % 7 / 70))
        run.report(loss=weight)


def grid_of_rows(run: Any) -> None:
    """Self-paced learning: a list of rows that grows where the loss is small"""
    data = np.linspace(-1, 1, 16)
    rows, weight = [0], 1.0
    for step in run.steps():
        errors = weight - data[rows]
        weight -= run["lr"] * (float(errors.mean()) - 0.1 * target(step))
        if step >= LATE and abs(weight) < 0.9 and len(rows) < 16:
            rows.append(len(rows))
        run.report(loss=weight**2)


def q_table(run: Any) -> None:
    """Q-learning: a table and a position, in a dict with tuples as keys"""
    table, place = {(row, move): 0.0 for row in range(5) for move in (-1, 1)}, 2
    for step in run.steps():
        move = 1 if table[place, 1] + target(step) > table[place, -1] else -1
        after = min(4, max(0, place + move))
        best = max(table[after, -1], table[after, 1])
        table[place, move] += run["lr"] * (after / 4 + 0.9 * best - table[place, move])
        place = after
        run.report(loss=sum(table.values()))


def memory_of_rewards(run: Any) -> None:
    """RL: a replay buffer as a list of tuples, sampled by the step"""
    memory, weight = list[tuple[int, float]](), 1.0
    for step in run.steps():
        memory.append((step, weight * target(step)))
        row, reward = memory[step * 7 % len(memory)]
        weight -= run["lr"] * (weight - reward - row / 100)
        run.report(loss=weight**2)


def fold_of_data(run: Any) -> None:
    """k-fold: the fold and the sums of each fold in variables"""
    fold, sums, weight = 0, [0.0] * 4, 1.0
    for step in run.steps():
        weight -= run["lr"] * (weight - target(step) + fold / 10)
        sums[fold] += weight
        if step % 20 == 19:
            fold = (fold + 1) % 4
        run.report(loss=sum(sums))


def with_exit(run: Any) -> None:
    """A `try` and a `with` around the loop, with a count of bad steps"""
    weight, bad = 1.0, 0
    try:
        with np.errstate(all="ignore"):
            for step in run.steps():
                bad += target(step) < 0
                weight -= run["lr"] * (weight - bad / (step + 1))
                run.report(loss=weight**2)
    finally:
        weight = 0.0


KINDS = (
    exact(best_loss),
    exact(early_stopping),
    exact(plateau),
    exact(late_average),
    exact(own_momentum),
    exact(arrays_in_place),
    exact(own_tensors),
    exact(history_list),
    exact(counting_dict),
    exact(window_deque),
    exact(seen_set),
    exact(nested_containers),
    exact(library_containers),
    exact(in_helper),
    exact(inner_function),
    exact(swapped_pair),
    exact(phases),
    exact(decaying_epsilon),
    exact(numbers_of_numpy),
    exact(grid_of_rows),
    exact(q_table),
    exact(memory_of_rewards),
    exact(fold_of_data),
    exact(with_exit),
)
