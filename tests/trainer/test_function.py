import gc
import weakref
from collections import deque
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dasktune._engine.scaling import Scale
from dasktune._study.create import create_study
from dasktune.errors import ConfigurationError, StateError, TrainerError
from dasktune.sequences import MultiStep, Piecewise, as_sequence
from dasktune.trainer.base import problems_of
from dasktune.trainer.check_resume import check_resume
from dasktune.trainer.fingerprint.fingerprint import fingerprint
from dasktune.trainer.function import trainer_of
from dasktune.trainer.lifecycle import TrainerRun, run_alone
from dasktune.trainer.metrics import metric_names
from dasktune.trainer.proof.reach import Reach
from tests.forked import fork_for_resume_checks

X = torch.linspace(-1, 1, 60).reshape(20, 3).sin()
Y = (X.sum(1, keepdim=True) > 0).float()
DROP = {"lr": MultiStep(0.1, milestones=[3], gamma=0.1), "batch_size": Piecewise([4, 8], [2])}


def network():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 1))


def train(run):
    model, loss_of = network(), nn.BCEWithLogitsLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=run["lr"], momentum=0.9)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    loader = run.loader((X, Y), batch_size=run["batch_size"])
    noise = np.random.default_rng(run.seed)
    run.state["mean"] = torch.zeros(())
    run.state["seen"] = 0
    run.track(model, optimizer, schedule, noise)
    for _ in run.steps():
        model.train()
        for x, y in loader.epoch_batches():
            optimizer.zero_grad()
            loss = loss_of(model(x + 0.1 * float(noise.random())), y)
            loss.backward()
            optimizer.step()
            run.state["seen"] += len(x)
            run.state["mean"].lerp_(loss.detach(), 0.1)
        model.eval()
        with torch.no_grad():
            run.report(loss=loss_of(model(X), Y), mean=run.state["mean"], lr=run["lr"])


def steps_of(body, steps=4, **values):
    """Train a function that does `body` in each step."""

    def function(run):
        for _ in run.steps():
            body(run)

    return run_alone(trainer_of(function), values or {"lr": 0.1}, steps).metrics


def values_at(step):
    return {name: sequence(step) for name, sequence in DROP.items()}


@pytest.mark.parametrize("split", [1, 2, 3, 5])
def test_a_resumed_function_goes_on_bit_for_bit(split):
    alone = run_alone(train, DROP, 6, states_at=[split, 6])
    run = TrainerRun.resume(
        trainer_of(train),
        step=split,
        first_values=values_at(0),
        last_values=values_at(split - 1),
        state=alone.states[split],
        config={},
        seed=0,
    )
    assert run.evaluate() == alone.metrics[split]
    for step in range(split, 6):
        run.advance(values_at(step))
        assert run.evaluate() == alone.metrics[step + 1]
    assert run.state()["values"]["state"]["seen"] == 6 * 20


def test_changed_values_reach_optimizer_and_loader():
    seen = []

    def function(run):
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(
            [{"params": [model.weight]}, {"params": [model.bias], "lr": 7.0}], lr=run["lr"]
        )
        loader = run.loader(X, batch_size=run["batch_size"])
        run.track(model, optimizer)
        for step in run.steps():
            rates = [group["lr"] for group in optimizer.param_groups]
            seen.append((step, *rates, loader.batch_size))
            run.report(loss=0)

    run_alone(function, DROP, 4)
    assert seen == [
        (0, 0.1, 7.0, 4),
        (1, 0.1, 7.0, 4),
        (2, 0.1, 7.0, 8),
        (3, pytest.approx(0.01), 7.0, 8),
    ]


def test_values_before_the_loop_are_those_of_step_0():
    read = []

    def function(run):
        read.append(run["lr"])
        for _ in run.steps():
            read.append(run["lr"])
            run.report(loss=0)

    trainer = trainer_of(function)
    state = run_alone(trainer, {"lr": Piecewise([1, 2], [3])}, 4, states_at=[4]).states[4]
    assert read == [1, 1, 1, 1, 2]
    run = TrainerRun.resume(
        trainer,
        step=4,
        first_values={"lr": 1},
        last_values={"lr": 2},
        state=state,
        config={},
        seed=0,
    )
    run.advance({"lr": 2})
    assert read[5:] == [1, 2]


def test_a_reported_tensor_counts_as_it_was():
    def body(run):
        loss = torch.ones(())
        run.report(loss=loss)
        loss += 1

    assert steps_of(body, steps=1) == {1: {"loss": 1.0}}


def test_a_run_is_a_mapping_of_the_present_values():
    metrics = steps_of(lambda run: run.report(n=len(run), has="lr" in run), lr=0.1, width=3)
    assert metrics[1] == {"n": 2.0, "has": 1.0}


def test_reports_of_one_step_are_put_together():
    def body(run):
        if run.step == 1:
            run.report(a=1)
        run.report(b=2)

    assert steps_of(body, 3) == {1: {"b": 2.0}, 2: {"a": 1.0, "b": 2.0}, 3: {"b": 2.0}}


def refused(function, steps=4, **values):
    errors = ConfigurationError, TrainerError, StateError, AttributeError
    with pytest.raises(errors) as error:
        run_alone(trainer_of(function), values or {"lr": 0.1}, steps)
    return str(error.value)


def test_an_unknown_value_names_the_known_ones():
    def function(run):
        run["rate"]

    assert refused(function, lr=0.1, width=3) == (
        "unknown hyper-parameter 'rate'; known: lr, width"
    )


def test_a_change_that_nothing_uses_is_refused():
    def function(run):
        rate = run["lr"]
        for _ in run.steps():
            run.report(loss=rate)

    assert "the value of 'lr' has changed, and nothing used it in step 4" in refused(
        function, lr=MultiStep(0.1, milestones=[3], gamma=0.5)
    )


def test_an_object_that_is_not_tracked_is_refused():
    def function(run):
        model = nn.Linear(3, 1)
        for _ in run.steps():
            run.report(loss=model(X).sum())

    assert "model, a Linear, has a state that would be lost: call run.track(model)" in refused(
        function
    )


def test_an_object_made_in_the_first_step_is_refused():
    def function(run):
        for _ in run.steps():
            generator = np.random.default_rng(0)
            run.report(loss=generator.random())

    assert "generator, a Generator, has a state" in refused(function)


def test_a_fixed_object_is_not_saved():
    def function(run):
        teacher = nn.Linear(3, 1)
        run.keep_fixed(teacher)
        for _ in run.steps():
            run.report(loss=teacher(X).sum())

    state = run_alone(function, {"lr": 0.1}, 1, states_at=[1]).states[1]
    assert state["objects"] == {}


def test_parts_of_a_tracked_module_are_tracked_with_it():
    def function(run):
        model = network()
        head = model[3]
        run.track(model)
        for _ in run.steps():
            run.report(loss=head.weight.sum())

    run_alone(function, {"lr": 0.1}, 2)


def test_persistent_workers_are_refused():
    def function(run):
        batches = DataLoader(TensorDataset(X), num_workers=1, persistent_workers=True)
        for _ in run.steps():
            run.report(loss=len(batches))

    assert "persistent_workers=True cannot be saved; use run.loader(" in refused(function)


def test_a_number_is_not_tracked():
    def function(run):
        run.track(3)

    assert "numbers, arrays and tensors belong into run.state" in refused(function)


MISUSES = {
    "run['rate']": "unknown hyper-parameter 'rate'; known: lr",
    "run.lr": "a run has no attribute 'lr'; the value of this hyper-parameter is run['lr']",
    "run.steps(10)": "run.steps() must get no arguments, got 10: how far a trial is trained is",
    "a, b = run.steps(), run.steps()": "must have one loop over run.steps(), got a second one",
    "return": "must loop over run.steps(), it has ended",
    "run.report(loss=1)": "run.report must be called in the loop over run.steps()",
    "LOOP: break": "must not leave the loop over run.steps(): how far a trial is trained is",
    "LOOP: return 3": "must not leave the loop over run.steps(): how far a trial is trained is",
    "LOOP: next(run.steps())": "must have one loop over run.steps(), got a second one",
    "LOOP: run.track(nn.Linear(1, 1))": "run.track must be called before the loop",
    "LOOP: run.loader(X, batch_size=2)": "run.track must be called before the loop",
    "LOOP: run.suggest_float('lr', 0, 1)": "'lr' must be suggested before the loop over run",
    "LOOP: run.should_prune()": "a run has no attribute 'should_prune'; the tuner stops and pauses",
    "LOOP: pass": "must call run.report() in each step, got no report in step 1",
    "LOOP: step or run.report(loss=1)": "in each step, got no report in step 2",
    "LOOP: run.report()": "by name, such as run.report(loss=0.1), got none",
    "LOOP: run.report(0.5, step)": "run.report(loss=0.1), got 0.5 without a name",
    "LOOP: run.report(loss='1')": "run.report: metric 'loss' must be a number, got '1'",
    "LOOP: run.report(loss=None)": "run.report: metric 'loss' must be a number, got None",
    "LOOP: run.report(loss=X[0])": "must be a number, got an array of shape (3,)",
}
"""Bodies of training functions, and their messages."""


@pytest.mark.parametrize("body", MISUSES)
def test_each_misuse_of_a_run_has_its_message(body):
    lines = body.removeprefix("LOOP: ")
    if lines != body:
        lines = f"for step in run.steps():\n        {lines}"
    names = {"nn": nn, "X": X, "__name__": __name__}
    exec(f"def function(run):\n    {lines}\n", names)
    assert MISUSES[body] in refused(names["function"])


def test_a_value_is_gone_once_the_function_has_ended():
    runs = []

    def function(run):
        runs.append(run)
        for _ in run.steps():
            run.report(loss=run["lr"])

    run_alone(function, {"lr": 0.1}, 1)
    gc.collect()
    (run,) = runs
    for use in (lambda: run["lr"], run.steps, run.report, lambda: run.track(nn.Linear(1, 1))):
        with pytest.raises(TrainerError, match="it has ended, and its values are gone"):
            use()


def test_the_users_exception_comes_with_its_line():
    def function(run):
        for _ in run.steps():
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine") as error:
        run_alone(function, {"lr": 0.1}, 1)
    assert error.traceback[-1].name == "function"


def test_finally_blocks_run_once_the_training_is_over():
    said = []

    def function(run):
        try:
            for _ in run.steps():
                run.report(loss=1)
        finally:
            said.append("closed")

    run_alone(function, {"lr": 0.1}, 2)
    gc.collect()
    assert said == ["closed"]


async def coroutine(run): ...


def generator(run):
    yield


def nothing(): ...


def two(run, other): ...


def named(*, run): ...


def enumerating(run):
    for place, _ in enumerate(run.steps()):
        run.report(loss=place)


def counting_of_its_own(run):
    for _ in run.steps():
        run.report(loss=sum(place for place, _ in enumerate(run.config["schedule"].steps())))


def test_a_function_may_enumerate_steps_of_another_object():
    assert problems_of(counting_of_its_own) == ()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (coroutine, "coroutine must be a plain function, without async and yield"),
        (generator, "generator must be a plain function, without async and yield"),
        (nothing, "must take one argument, the run, got ()"),
        (two, "must take one argument, the run, got (run, other)"),
        (named, "must take one argument, the run, got (*, run)"),
        (enumerating, "'for step in run.steps()' gives the step of the trial"),
    ],
)
def test_what_is_no_training_function_is_refused(function, words):
    assert words in problems_of(function)[0]
    with pytest.raises(ConfigurationError):
        trainer_of(function)


def test_options_are_attributes_of_the_function():
    def function(run): ...

    function.version, function.threads = "2", 3
    trainer = trainer_of(function)
    assert (trainer.version, trainer.threads, trainer.deterministic) == ("2", 3, True)
    assert fingerprint(trainer, {}).parts["version"] == "2"


def test_the_fingerprint_is_that_of_the_functions_code():
    def same(run):
        return network()

    def other(run):
        return None

    def digest(function):
        return fingerprint(trainer_of(function), {}).digest

    assert digest(same) == digest(same) != digest(other)
    assert any("network" in part for part in fingerprint(trainer_of(same), {}).parts)


@pytest.mark.process
def test_the_check_passes_for_what_is_tracked(monkeypatch):
    fork_for_resume_checks(monkeypatch)
    assert check_resume(train, DROP).ok


def forgetful(run):
    def count():
        count.seen += len(X)
        return count.seen

    model, count.seen = nn.Linear(3, 1), 0
    run.track(model)
    for _ in run.steps():
        with torch.no_grad():
            model.weight += 0.1 * count()
        run.report(loss=model.weight.sum())


@pytest.mark.process
def test_the_check_names_a_variable_that_is_lost(monkeypatch):
    fork_for_resume_checks(monkeypatch)
    report = check_resume(forgetful, {"lr": 0.1})
    assert not report.ok
    assert "count.seen" in str(report)


class Bar:
    """A progress bar: the loop goes through its iterator."""

    def __init__(self, steps):
        self.steps = steps

    def __iter__(self):
        yield from self.steps


def loop(run, *held):
    for _ in run.steps():
        run.report(loss=0)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("bar", "model, a Linear, has a state"),
        ("outer call", "model, a Linear, has a state"),
        ("list", "held[0], a Linear, has a state"),
        ("dict", "held['net'], a Linear, has a state"),
        ("generator of a DataLoader", "held.generator, a Generator, has a state"),
        ("persistent DataLoader", "held['train']: the position of a DataLoader"),
        ("iterator", "held: the position of a list_iterator cannot be saved"),
    ],
)
def test_an_object_out_of_sight_is_refused(place, words):
    def function(run):
        if place in ("bar", "outer call"):
            model = nn.Linear(3, 1)
        if place == "outer call":
            return loop(run, model(X))
        if place == "list":
            held = [nn.Linear(3, 1)]
        elif place == "dict":
            held = {"net": nn.Linear(3, 1)}
        elif place == "generator of a DataLoader":
            held = DataLoader(TensorDataset(X), shuffle=True, generator=torch.Generator())
        elif place == "persistent DataLoader":
            held = {"train": DataLoader(TensorDataset(X), num_workers=1, persistent_workers=True)}
        elif place == "iterator":
            held = iter([1, 2, 3])
        for _ in Bar(run.steps()):
            run.report(loss=0)
        return held

    assert words in refused(function)


def test_what_is_tracked_or_fixed_may_be_held_anywhere():
    def function(run):
        nets, teacher = [nn.Linear(3, 1)], {"net": nn.Linear(3, 1)}
        order = torch.Generator()
        batches = DataLoader(TensorDataset(X), shuffle=True, generator=order)
        steps = run.steps()
        bar = Bar(steps)
        run.track(nets[0], order)
        run.keep_fixed(teacher)
        for _ in bar:
            noise = np.random.default_rng(run.step)
            run.keep_fixed(noise)
            rest = iter(batches)
            x = next(rest)[0] * noise.random()
            run.report(loss=(nets[0](x) + teacher["net"](x)).sum() * 0)

    assert run_alone(function, {"lr": 0.1}, 3).metrics[3] == {"loss": 0.0}


def test_a_batch_is_free_once_the_step_has_the_next_one():
    class Batch: ...

    batches, alive = [], []

    def function(run):
        for _ in run.steps():
            batch = Batch()
            batches.append(weakref.ref(batch))
            alive.append(sum(each() is not None for each in batches))
            run.report(loss=0)

    run_alone(function, {"lr": 0.1}, 4)
    assert alive == [1, 1, 1, 1]


def resumed(function, split, steps, **values):
    """Return the metrics of a function alone and of its rest after a resumption."""
    alone = run_alone(function, values, steps, states_at=[split])
    functions = {name: as_sequence(value) for name, value in values.items()}

    def at(step):
        return {name: function(step) for name, function in functions.items()}

    run = TrainerRun.resume(
        trainer_of(function),
        step=split,
        first_values=at(0),
        last_values=at(split - 1),
        state=alone.states[split],
        config={},
        seed=0,
    )
    rest = {}
    for step in range(split, steps):
        run.advance(at(step))
        rest[run.step] = run.evaluate()
    return {step: alone.metrics[step] for step in rest}, rest


def test_a_variable_that_holds_the_state_holds_the_loaded():
    def function(run):
        own, seen = run.state, run.state.setdefault("seen", [])
        last = own["last"] = {"step": 0}
        for step in run.steps():
            seen.append(step)
            last["step"] += 1
            own["number"] = own.get("number", 0) + 1
            run.report(seen=len(seen), last=last["step"], number=own["number"])

    alone, rest = resumed(function, 2, 4, lr=0.1)
    assert rest == alone == {n: {"seen": n, "last": n, "number": n} for n in (3.0, 4.0)}


def test_a_value_read_at_times_may_change_when_resumed():
    def function(run):
        for step in run.steps():
            if step % 3 == 0:
                run.state["decay"] = run["decay"]
            run.report(loss=run.state["decay"])

    alone, rest = resumed(function, 2, 6, decay=Piecewise([1.0, 2.0], [4]))
    assert rest == alone


def test_a_run_says_whether_it_has_a_value():
    def body(run):
        run.report(has="rate" in run, other=run.get("rate", 7), lr=run.get("lr"))

    assert steps_of(body, 1) == {1: {"has": 0.0, "other": 7.0, "lr": 0.1}}


@pytest.mark.parametrize("make", [deque, network])
def test_a_state_that_cannot_be_saved_is_named(make):
    def function(run):
        run.state["own"] = make()
        for _ in run.steps():
            run.report(loss=1)

    with pytest.raises(StateError, match=r"run.state\['own'\].*must consist of numbers"):
        run_alone(function, {"lr": 0.1}, 1, states_at=[1])


def test_objects_of_one_name_are_all_tracked():
    def function(run):
        run.track(net=nn.Linear(1, 1), net_2=nn.Linear(1, 1))
        run.track(net=nn.Linear(1, 1))
        for _ in run.steps():
            run.report(loss=len(run.tracked))

    assert run_alone(function, {"lr": 0.1}, 1).metrics[1] == {"loss": 3.0}


def test_track_returns_the_objects_that_it_was_given():
    def function(run):
        first, second = nn.Linear(1, 1), nn.Linear(1, 1)
        both = run.track(first, second)
        same = both == (first, second) and run.track(first) is first
        same = same and run.track(net=second) is second
        for _ in run.steps():
            run.report(loss=float(same))

    assert run_alone(function, {"lr": 0.1}, 1).metrics[1] == {"loss": 1.0}


def test_a_loader_of_the_run_is_iterated_over():
    def function(run):
        loader = run.loader(torch.arange(5), batch_size=2, shuffle=False)
        for _ in run.steps():
            run.report(loss=sum(float(batch[0]) for batch in loader))

    assert run_alone(function, {"lr": 0.1}, 2).metrics[2] == {"loss": 6.0}


def test_a_metric_of_one_element_is_refused_where_it_is_given():
    def function(run):
        for _ in run.steps():
            run.report(loss=torch.zeros(1))

    assert "run.report: metric 'loss' must be a number, got an array of shape (1,)" in refused(
        function
    )


def test_a_check_of_the_trainer_uses_no_value():
    run = TrainerRun.start(trainer_of(train), values_at(0), config={}, seed=0)
    run.advance(values_at(0))
    before = list(run.trainer.run.used)
    dict(Reach(run.trainer, "cpu").leaves())
    assert run.trainer.run.used == before


def reporting(run):
    for _ in run.steps():
        run.report(loss=run["lr"])
        if run.step:
            run.report(accuracy=1.0, seen=run.get("width", 0))


def handing_on(run):
    loop(run)
    run.report(loss=1)


def renaming(run):
    report = run.report
    for _ in run.steps():
        report(loss=1)


def spreading(run):
    metrics = {"loss": 1}
    for _ in run.steps():
        run.report(**metrics)


def test_the_names_of_reports_are_read_from_the_source():
    assert metric_names(trainer_of(reporting)) == {"loss", "accuracy", "seen"}
    for unknown in (handing_on, renaming, spreading):
        assert metric_names(trainer_of(unknown)) == frozenset()


def test_a_misspelt_metric_names_those_that_are_reported(tmp_path):
    with pytest.raises(ConfigurationError) as error:
        create_study(reporting, name="x", storage=tmp_path, metric="acuracy")
    assert str(error.value) == (
        "unknown metric 'acuracy'; known: accuracy, loss, seen; did you mean 'accuracy'?"
    )
    assert list(tmp_path.iterdir()) == []


class Holder:
    def method(self, run): ...


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (partial(train, 3), "give the function itself, and its further arguments as config"),
        (Holder().method, "a method depends on its object"),
        (lambda run: 0, "a lambda cannot loop over run.steps(): write"),
        (trainer_of(train)(), "give the class itself, train, of which workers make objects"),
    ],
)
def test_what_is_nearly_a_trainer_says_what_to_give(given, words, tmp_path):
    with pytest.raises(ConfigurationError) as error:
        create_study(given, name="x", storage=tmp_path, metric="loss")
    assert words in str(error.value)


def test_scale_with_a_function_is_refused(tmp_path):
    with pytest.raises(ConfigurationError) as error:
        create_study(train, name="x", storage=tmp_path, metric="loss", scale=Scale(max=2))
    assert str(error.value) == (
        "train is a function, which trains on one device; several devices need a TorchTrainer "
        "with divides = True"
    )
