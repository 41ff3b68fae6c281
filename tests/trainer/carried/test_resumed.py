"""Training functions with variables of their own, split after each step."""

import gc
import math
import random
import sys
import weakref
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from dasktune.errors import StateError
from dasktune.storage.codec import decode, encode
from dasktune.trainer.function import trainer_of
from dasktune.trainer.lifecycle import TrainerRun, run_alone

STEPS = 9
VALUES = {"lr": 0.1}
Pair = namedtuple("Pair", "low high")


def noise(step):
    """Return a number that differs from step to step."""
    return math.sin(7.3 * step + 1.0)


def metrics_after(function, split):
    """Return the metrics of a function that goes on after `split` steps from a stored state."""
    trainer = trainer_of(function)
    first = TrainerRun.start(trainer, VALUES, config={}, seed=3)
    for _ in range(split):
        first.advance(VALUES)
    snapshot = encode(first.state())
    random.seed(0)
    run = TrainerRun.resume(
        trainer,
        step=split,
        first_values=VALUES,
        last_values=VALUES,
        state=decode(snapshot.document, snapshot.data),
        config={},
        seed=3,
    )
    metrics = {}
    for _ in range(split, STEPS):
        run.advance(VALUES)
        metrics[run.step] = run.evaluate()
    again = encode(run.state())
    return metrics, again.digest


def best_by_min(run):
    best = float("inf")
    for step in run.steps():
        best = min(best, noise(step))
        run.report(best=best)


def early_stopping(run):
    best, bad, stopped = None, 0, False
    for step in run.steps():
        loss = 1.0 if stopped else noise(step)
        if best is None or loss < best:
            best, bad = loss, 0
        else:
            bad += 1
        if bad >= 3:
            stopped = True
        run.report(loss=loss, bad=bad, stopped=stopped)


def batches_of_one_order(run):
    order, mean = [], 0.0
    for step in run.steps():
        if not order:
            order = list(torch.arange(20.0).mul(1 + step).sin().split(5))
        batch = order.pop()
        batch += 1
        mean += float(batch.mean())
        run.report(mean=mean, left=len(order))


def halves_of_one_array(run):
    low, high = np.zeros(4), np.zeros(4)
    for step in run.steps():
        low += high.sum() + noise(step)
        low, high = np.split(np.concatenate([high, low]), 2)
        run.report(low=low.sum(), high=high.sum())


def average_made_when_needed(run):
    for step in run.steps():
        if step == 4:
            average = torch.full((2,), noise(step))
        if step > 4:
            average = 0.5 * average + noise(step)
        run.report(loss=average.sum() if step >= 4 else 0.0)


def average_by_name_error(run):
    for step in run.steps():
        value = np.float64(noise(step))
        try:
            average = 0.5 * average + value
        except NameError:
            average = value
        run.report(loss=average, kind=isinstance(average, np.float64))


def average_by_locals(run):
    for step in run.steps():
        if step >= 3:
            average = noise(step) if "average" not in locals() else average + noise(step)  # noqa: F821
        run.report(loss=average if step >= 3 else 0.0)


def none_then_tensor(run):
    average = None
    for step in run.steps():
        now = torch.tensor([noise(step), 1.0])
        if step > 2:
            average = now if average is None else average.lerp(now, 0.1)
        run.report(loss=0.0 if average is None else average[0])


def counter_by_key(run):
    counts = {}
    for step in run.steps():
        key = step % 3
        counts[key] = counts.get(key, 0) + 1
        run.report(first=counts[0], total=sum(k * n for k, n in counts.items()))


def counter_by_pair(run):
    table = defaultdict(float)
    for step in run.steps():
        table[step % 2, "up"] += noise(step)
        run.report(loss=sum(i * v for i, v in enumerate(table.values())), n=len(table))


def factory_of_its_own(run):
    table = defaultdict(lambda: 0.5)
    for step in run.steps():
        table[step % 4] += noise(step)
        run.report(loss=sum(i * v for i, v in enumerate(table.values())))


def counter_of_letters(run):
    letters = Counter()
    for step in run.steps():
        letters.update("abcde"[step % 5 :])
        run.report(most=letters.most_common(1)[0][1], e=letters["e"], none=letters["x"])


def counter_made_anew(run):
    letters = Counter()
    for step in run.steps():
        letters = letters + Counter({"a": 1, "b": step})
        run.report(a=letters["a"], b=letters["b"], c=letters["c"])


def window(run):
    last = deque(maxlen=3)
    for step in run.steps():
        last.append(noise(step))
        run.report(loss=sum(last) / len(last))


def window_made_anew(run):
    last = deque([1.0], maxlen=2)
    for step in run.steps():
        last = deque([*last, noise(step)], maxlen=3)
        run.report(loss=sum(last), n=len(last))


def averaged_tensors(run):
    model = nn.Linear(3, 1)
    ema = {name: value.clone() for name, value in model.state_dict().items()}
    run.track(model)
    for step in run.steps():
        with torch.no_grad():
            model.weight += noise(step)
        for name, value in model.state_dict().items():
            ema[name].mul_(0.9).add_(value, alpha=0.1)
        run.report(loss=ema["weight"].sum())


def averaged_tensors_made_anew(run):
    model = nn.Linear(3, 1)
    ema = OrderedDict((k, v.clone()) for k, v in model.state_dict().items())
    run.track(model)
    for step in run.steps():
        with torch.no_grad():
            model.weight += noise(step)
        ema = OrderedDict((k, 0.9 * ema[k] + 0.1 * v) for k, v in model.state_dict().items())
        run.report(loss=ema["weight"].sum())


def swapped(run):
    a, b = 0, 1
    for _ in run.steps():
        a, b = b, a + b
        run.report(a=a)


def walrus(run):
    total = 0.0
    for step in run.steps():
        if (total := total + noise(step)) > 1.0:
            total -= 0.5
        run.report(loss=total)


def looping(run, start):
    total, seen = start, []
    for step in run.steps():
        total += noise(step)
        seen.append(step)
        run.report(loss=total, seen=sum(seen))


def loop_in_a_helper(run):
    start = 10.0
    looping(run, start)


def counted_by_nonlocal(run):
    n = 0

    def count():
        nonlocal n
        n += 1
        return n

    for _ in run.steps():
        run.report(n=count())


def counter():
    n, names = 0, []

    def count():
        nonlocal n
        n += 2
        names.append(n)
        return n + len(names)

    return count


def counted_by_a_closure(run):
    count = counter()
    for _ in run.steps():
        run.report(n=count())


def counted_by_a_helpers_closure(run):
    n = 0

    def body():
        nonlocal n
        for _ in run.steps():
            n += 1
            run.report(n=n)

    body()


def counted_by_a_generator(run):
    def counted(steps):
        n = 100
        for _ in steps:
            n += 1
            yield n

    for n in counted(run.steps()):
        run.report(n=n)


def kinds_of_numbers(run):
    whole, real, flag, wide = 0, 0.0, False, np.float32(0)
    for step in run.steps():
        whole, real, flag, wide = whole + 1, real + 1, not flag, np.float32(wide + noise(step))
        run.report(
            whole=isinstance(whole, int) + whole,
            real=isinstance(real, float) + real,
            flag=isinstance(flag, bool) + flag,
            wide=isinstance(wide, np.float32) + wide,
        )


def set_of_names(run):
    seen, frozen = set(), frozenset()
    for step in run.steps():
        seen.add(f"name {step % 4}")
        frozen = frozen | {step % 5}
        run.report(n=len(seen), frozen=sum(frozen))


def deleted(run):
    first = 3.0
    for step in run.steps():
        if step == 2:
            del first
        run.report(loss=first if step < 2 else noise(step))


def two_names_for_one_list(run):
    a = b = []
    for step in run.steps():
        a.append(step)
        if step == 4:
            a = []
        run.report(a=len(a), b=len(b))


def one_list_that_leaves_the_other(run):
    a = b = []
    for step in run.steps():
        a = [*a, step]
        run.report(a=len(a), b=len(b))


def new_values_beside_the_first_ones(run):
    first = np.zeros(3)
    parameters = {"w": first}
    for step in run.steps():
        parameters["w"] = parameters["w"] + noise(step)
        run.report(loss=parameters["w"].sum(), first=first.sum())


def weights_in_a_list(run):
    w, b = np.zeros(3), np.ones(1)
    both = [w, b]
    for step in run.steps():
        w += noise(step)
        b *= 1.5
        run.report(loss=sum(each.sum() for each in both), w=w.sum())


def weight_of_a_model(run):
    model = nn.Linear(2, 1)
    run.track(model)
    chosen = model.weight
    for step in run.steps():
        if step == 3:
            chosen = model.bias
        with torch.no_grad():
            chosen += noise(step)
        run.report(loss=model.weight.sum(), bias=model.bias.sum())


def part_of_the_state(run):
    run.state["rows"] = [[0.0], [0.0]]
    row = run.state["rows"][0]
    for step in run.steps():
        row.append(noise(step))
        row = run.state["rows"][step % 2]
        run.report(first=sum(run.state["rows"][0]), second=sum(run.state["rows"][1]))


def groups_of_an_optimizer(run):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    run.track(model, optimizer)
    group = optimizer.param_groups[0]
    for step in run.steps():
        group["lr"] *= 0.9
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        run.report(loss=model.weight.sum(), lr=group["lr"] + step)


def raw_parameters(run):
    w = nn.Parameter(torch.ones(2))
    b = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([w, b], lr=0.1, momentum=0.9)
    run.track(optimizer)
    for step in run.steps():
        optimizer.zero_grad()
        loss = ((w * noise(step)).sum() + b).pow(2).sum()
        loss.backward()
        optimizer.step()
        run.report(loss=loss.detach())


@dataclass
class Stopper:
    best: float = math.inf
    bad: int = 0
    history: list = field(default_factory=list)

    def __call__(self, loss):
        self.history.append(loss)
        self.bad = 0 if loss < self.best else self.bad + 1
        self.best = min(self.best, loss)
        return self.bad


def object_of_an_own_class(run):
    stopper = Stopper()
    for step in run.steps():
        run.report(bad=stopper(noise(step)), n=len(stopper.history))


def numbers_in_a_namespace(run):
    now = SimpleNamespace(best=math.inf, seen=[])
    for step in run.steps():
        now.best = min(now.best, noise(step))
        now.seen.append(step)
        run.report(best=now.best, n=len(now.seen))


def loss_of_the_last_batch(run):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = run.loader(torch.arange(12.0).sin().reshape(6, 2), batch_size=2)
    run.track(model, optimizer)
    smallest = torch.tensor(math.inf)
    for _ in run.steps():
        for x in loader.epoch_batches():
            loss = model(x).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        smallest = min(smallest, loss)
        run.report(loss=loss.item(), smallest=smallest, graph=smallest.requires_grad)


def named_pair(run):
    pair = Pair(0.0, 0.0)
    for step in run.steps():
        pair = Pair(min(pair.low, noise(step)), max(pair.high, noise(step)))
        run.report(low=pair.low, high=pair.high)


def nested_containers(run):
    held = {"a": [np.zeros(2), (1, [2])], "b": {"c": None}}
    for step in run.steps():
        held["a"][0] += noise(step)
        held["a"][1][1].append(step)
        held["b"]["c"] = (step, [noise(step)])
        run.report(
            loss=held["a"][0].sum(),
            n=sum(held["a"][1][1]),
            c=held["b"]["c"][1][0],
        )


def infinite_numbers(run):
    low, high, odd = math.inf, -math.inf, math.nan
    big = 2**70
    for step in run.steps():
        low, high = min(low, noise(step)), max(high, noise(step))
        odd = noise(step) if step == 4 else odd
        big += 1
        run.report(low=low, high=high, odd=1.0 if math.isnan(odd) else odd, big=big % 1000)


def bytes_and_text(run):
    text, raw, array = "", b"", bytearray()
    for step in run.steps():
        text, raw = text + str(step), raw + bytes([step])
        array.append(step)
        run.report(text=len(text), raw=sum(raw), array=sum(array))


def columns_first(run):
    matrix = np.asfortranarray(np.linspace(0, 1, 6000).reshape(60, 100))
    tensor = torch.linspace(0, 1, 6000).reshape(60, 100).t()
    for step in run.steps():
        matrix, tensor = matrix * 1.01 + noise(step), tensor * 1.01 + noise(step)
        run.report(loss=matrix.sum(), fortran=matrix.flags.f_contiguous, torch=tensor.stride()[0])


class Bar:
    def __init__(self, steps):
        self.steps, self.n = steps, 0

    def __iter__(self):
        for step in self.steps:
            self.n += 1
            yield step


def through_a_bar(run):
    bar, total = Bar(run.steps()), 0.0
    for step in bar:
        total += noise(step)
        run.report(loss=total, n=bar.n)


def through_tqdm(run):
    tqdm = pytest.importorskip("tqdm").tqdm
    bar, total = tqdm(run.steps(), disable=True), 0.0
    for step in bar:
        total += noise(step)
        bar.set_description(f"{total}")
        run.report(loss=total)


def asked_for_the_next_step(run):
    steps, total = run.steps(), 0.0
    while True:
        step = next(steps)
        total += noise(step)
        run.report(loss=total)


def loop_in_a_with(run):
    total = 0.0
    with torch.random.fork_rng():
        for step in run.steps():
            try:
                total += noise(step)
            finally:
                run.report(loss=total)


def arrays_of_other_types(run):
    hits, flags = np.zeros(3, int), torch.zeros(3, dtype=torch.bool)
    half = torch.zeros(2, dtype=torch.bfloat16)
    for step in run.steps():
        hits[step % 3] += 1
        flags[step % 3] = step > 4
        half = half + noise(step)
        run.report(loss=float(hits @ [1, 2, 3]), flags=flags.sum(), half=half.sum())


FUNCTIONS = [
    best_by_min,
    early_stopping,
    batches_of_one_order,
    halves_of_one_array,
    average_made_when_needed,
    average_by_name_error,
    average_by_locals,
    none_then_tensor,
    counter_by_key,
    counter_by_pair,
    factory_of_its_own,
    counter_of_letters,
    counter_made_anew,
    window,
    window_made_anew,
    averaged_tensors,
    averaged_tensors_made_anew,
    swapped,
    walrus,
    loop_in_a_helper,
    counted_by_nonlocal,
    counted_by_a_closure,
    counted_by_a_helpers_closure,
    counted_by_a_generator,
    kinds_of_numbers,
    set_of_names,
    *([deleted] if sys.version_info < (3, 12) else []),  # newer ones cannot delete it again
    two_names_for_one_list,
    one_list_that_leaves_the_other,
    new_values_beside_the_first_ones,
    weights_in_a_list,
    weight_of_a_model,
    part_of_the_state,
    groups_of_an_optimizer,
    raw_parameters,
    object_of_an_own_class,
    numbers_in_a_namespace,
    loss_of_the_last_batch,
    named_pair,
    nested_containers,
    infinite_numbers,
    bytes_and_text,
    columns_first,
    through_a_bar,
    through_tqdm,
    asked_for_the_next_step,
    loop_in_a_with,
    arrays_of_other_types,
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_function_resumed_after_any_step_is_exact(function):
    trainer = trainer_of(function)
    alone = run_alone(trainer, VALUES, STEPS, seed=3).metrics
    whole = TrainerRun.start(trainer, VALUES, config={}, seed=3)
    for _ in range(STEPS):
        whole.advance(VALUES)
    final = encode(whole.state()).digest
    for split in range(1, STEPS):
        metrics, digest = metrics_after(function, split)
        assert metrics == {step: alone[step] for step in range(split + 1, STEPS + 1)}, split
        assert digest == final, split


def test_a_state_without_variables_loads_as_before():
    trainer = trainer_of(best_by_min)
    first = TrainerRun.start(trainer, VALUES, config={}, seed=3)
    for _ in range(2):
        first.advance(VALUES)
    state = first.state()
    assert state.pop("variables") == {"best_by_min": {"best": min(noise(0), noise(1))}}
    run = TrainerRun.resume(
        trainer,
        step=2,
        first_values=VALUES,
        last_values=VALUES,
        state=state,
        config={},
        seed=3,
    )
    run.advance(VALUES)
    assert run.evaluate() == {"best": noise(2)}


def test_a_state_of_another_function_names_the_place():
    trainer = trainer_of(best_by_min)
    run = TrainerRun.start(trainer, VALUES, config={}, seed=3)
    run.advance(VALUES)
    for nodes, words in [
        ({"worst_by_max": {"best": 1.0}}, "the function pauses elsewhere: in best_by_min"),
        ({"best_by_min": {"best": {"original": ["best_by_min", "a", 3]}}}, "has not made this"),
        ({"best_by_min": {"best": {"place": ["state", "w"]}}}, "has not made this object"),
    ]:
        with pytest.raises(StateError, match=words):
            run.trainer.load_state_dict({**run.state(), "variables": nodes})


def test_variables_of_an_ended_function_are_free():
    models = []

    def function(run):
        model, seen = nn.Linear(1, 1), [np.zeros(2)]
        run.track(model)
        models.append(weakref.ref(model))
        for step in run.steps():
            seen.append(step)
            run.report(loss=0)

    run = TrainerRun.start(trainer_of(function), VALUES, config={}, seed=0)
    run.advance(VALUES)
    run.state()
    gc.collect()
    gc.disable()
    try:
        del run
        assert models[0]() is None
    finally:
        gc.enable()
