"""How many stages run together on a device that workers share."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace

import pytest

from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import (
    AuditsRun,
    Failed,
    FailTrial,
    Granted,
    Instruction,
    RunStage,
    Saved,
    Started,
    TrainingEnded,
    WorkerJoined,
    WorkerLost,
)
from dasktune.graph.kept_speeds import KeptFactor, KeptMeasurements, KeptSpeed
from dasktune.graph.keys import root_key
from dasktune.graph.packing import LEAST_SAMPLES, MOST_SAMPLES, PackedModel, PackingFactor
from dasktune.graph.view import RunView
from dasktune.needs import Needs
from dasktune.sequences import Constant
from dasktune.types import Value

STEPS = 10
GIB = 2**30
Total = Callable[[int], float]
"""Steps a second of a device by the number of stages that run together."""


def learn(factor: PackingFactor, total: Total, samples: int, noise: float = 0.0) -> list[int]:
    """Return the numbers of stages that a device runs while a factor is learned."""
    rng, ran = random.Random(3), []
    for _ in range(samples):
        ran.append(factor.tried)
        rate = total(factor.tried) / factor.tried * rng.lognormvariate(0.0, noise)
        factor.observe(factor.tried, steps=10, seconds=10 / rate)
    return ran


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_factor_grows_while_it_pays_and_no_further(noise: float) -> None:
    factor = PackingFactor()
    ran = learn(factor, lambda n: min(n, 3), 300, noise)
    assert (factor.kept, factor.most) == (3, 3)
    assert max(ran) == 4
    assert LEAST_SAMPLES <= ran.count(4) <= MOST_SAMPLES
    assert ran[-1] == 3


def test_a_device_that_gains_nothing_runs_one_again() -> None:
    factor = PackingFactor()
    ran = learn(factor, lambda n: 1.0 + 0.02 * n, 200, 0.05)
    assert ran.count(2) <= MOST_SAMPLES
    assert ran[-100:] == [1] * 100


def test_a_gain_that_stays_unclear_is_given_up() -> None:
    factor = PackingFactor()
    ran = learn(factor, lambda n: 1.05 if n > 1 else 1.0, 500, 0.3)
    assert ran.count(2) <= MOST_SAMPLES


def test_a_change_of_speed_has_a_factor_learned_anew() -> None:
    factor = PackingFactor()
    learn(factor, lambda n: 1.0, 50)
    assert factor.most == 1
    learn(factor, lambda n: 4.0 * n, 200)
    assert factor.kept > 2


def test_memory_that_was_full_is_not_filled_again() -> None:
    factor = PackingFactor()
    learn(factor, float, 60)
    together = factor.kept
    factor.outgrew(together)
    learn(factor, float, 100)
    assert factor.kept == factor.tried == together - 1


def test_a_lost_worker_lowers_a_factor_for_a_while() -> None:
    factor = PackingFactor()
    learn(factor, lambda n: min(n, 2), 60)
    assert factor.kept == 2
    factor.doubted(2)
    assert learn(factor, lambda n: min(n, 2), MOST_SAMPLES) == [1] * MOST_SAMPLES
    assert learn(factor, lambda n: min(n, 2), 10)[-1] == 2
    factor.doubted(2)
    ran = learn(factor, lambda n: min(n, 2), 2 * MOST_SAMPLES + 10)
    assert ran[: 2 * MOST_SAMPLES] == [1] * 2 * MOST_SAMPLES, "each time twice as long"
    assert ran[-1] == 2


class Device:
    """A dispatcher, and devices with four workers each whose speed depends on how many run."""

    def __init__(
        self,
        total: Total,
        *,
        devices: int = 1,
        workers: int = 4,
        nbytes: int = 16 * GIB,
        lookahead: float = 0.0,
        kinds: Sequence[str] = ("",),
        slowness: Callable[[Mapping[str, Value], str], float] = lambda values, kind: 1.0,
    ) -> None:
        self.total, self._devices = total, devices
        self.kinds, self._slowness = kinds, slowness
        options = DispatchOptions(lookahead_seconds=lookahead)
        self.dispatcher = Dispatcher(root_key("packing", 0), options)
        self.running: dict[str, RunStage] = {}
        self.queued: dict[str, RunStage] = {}
        self.left: dict[str, float] = {}
        self.peak = GIB
        self.now = 0.0
        self.together: list[int] = []
        self.failed: list[FailTrial] = []
        for number in range(workers * devices):
            at = number % devices
            event = WorkerJoined(
                worker=f"w{number}",
                kind=kinds[at % len(kinds)],
                device=f"d{at}",
                device_bytes=nbytes,
            )
            self.go_on(self.dispatcher.handle(event, 0.0))

    def ask(self, trials: Iterable[int], model: int = 0) -> None:
        """Ask for trials of a model, all at once."""
        for trial in trials:
            values = {"lr": Constant(0.1 + trial), "model": Constant(model)}
            self.dispatcher.register(trial, values, STEPS)
            self.go_on(self.dispatcher.extend(trial, STEPS, 0.0, self.now))

    def go_on(self, instructions: Iterable[Instruction]) -> None:
        todo = deque(instructions)
        while todo:
            instruction = todo.popleft()
            if isinstance(instruction, FailTrial):
                self.failed.append(instruction)
            if isinstance(instruction, RunStage) and instruction.worker in self.running:
                self.queued[instruction.worker] = instruction
            elif isinstance(instruction, RunStage):
                todo.extend(self.begin(instruction))

    def begin(self, order: RunStage) -> list[Instruction]:
        self.running[order.worker], self.left[order.worker] = order, STEPS
        return self.dispatcher.handle(Started(attempt=order.attempt), self.now)

    def beside(self, worker: str) -> int:
        own = int(worker[1:]) % self._devices
        return sum(int(other[1:]) % self._devices == own for other in self.running)

    def rate(self, worker: str) -> float:
        together = self.beside(worker)
        values = {name: each(0) for name, each in self.running[worker].node.sequences.items()}
        return self.total(together) / together / self._slowness(values, self.kind_of(worker))

    def kind_of(self, worker: str) -> str:
        return self.dispatcher.slots[worker].kind

    def end_next(self) -> None:
        """Go on until the next stage has ended."""
        rates = {w: self.rate(w) for w in self.running}
        worker = min(rates, key=lambda w: self.left[w] / rates[w])
        seconds = self.left[worker] / rates[worker]
        self.together.append(self.beside(worker))
        for other, rate in rates.items():
            self.left[other] -= seconds * rate
        self.now += seconds
        order = self.running.pop(worker)
        following = self.queued.pop(worker, None)
        if following is not None:
            self.running[worker] = following
        for event in (
            TrainingEnded(
                attempt=order.attempt,
                step=STEPS,
                status="trained",
                seconds=seconds,
                peak_bytes=self.peak,
            ),
            Saved(attempt=order.attempt, step=STEPS, reports=((STEPS, {"loss": 0.0}),)),
        ):
            self.go_on(self.dispatcher.handle(event, self.now))
        if following is not None:
            self.go_on(self.begin(following))

    def train(self) -> None:
        while self.running:
            self.end_next()

    def pack(self, together: int) -> None:
        """Train until so many run together."""
        while len(self.running) < together:
            self.end_next()


def test_stages_share_a_device_once_that_pays() -> None:
    device = Device(lambda n: min(n, 3))
    device.ask(range(120))
    device.train()
    assert device.together[:LEAST_SAMPLES] == [1] * LEAST_SAMPLES
    assert device.together[-40:].count(3) >= 35
    assert device.dispatcher.open.steps_executed == 120 * STEPS


def test_packed_models_tell_their_number_and_gain() -> None:
    device = Device(lambda n: 1 + 0.5 * (min(n, 3) - 1), kinds=["H100"])
    assert RunView(device.dispatcher).packed == []
    device.ask(range(120))
    device.train()
    (packed,) = RunView(device.dispatcher).packed
    assert packed.gain == pytest.approx(2.0, rel=0.05)
    packed = replace(packed, gain=2.0)
    assert str(packed) == (
        "3 trials train together on each H100 with model=0: 2.00 times the steps a second of 1"
    )
    assert PackedModel.from_json(asdict(packed)) == packed
    alone = replace(packed, together=1, gain=1.0)
    assert str(alone) == "1 trial trains alone on each H100 with model=0"


def test_next_run_begins_with_the_packing_factors_of_the_last() -> None:
    first = Device(lambda n: min(n, 3), kinds=["H100"])
    first.ask(range(120))
    first.train()
    (factor,) = first.dispatcher.kept.factors
    assert (factor.kind, factor.together, factor.most, factor.fits) == ("H100", 3, 3, None)
    assert factor.nbytes == GIB
    assert dict(factor.rates) == pytest.approx({1: 1.0, 2: 1.0, 3: 1.0, 4: 0.75}, rel=0.2)
    second = Device(lambda n: min(n, 3), kinds=["H100"])
    second.dispatcher.recall(KeptMeasurements(factors=(KeptFactor.from_json(factor.to_json()),)))
    assert second.dispatcher.kept.factors == (), "nothing was learned in this run"
    second.ask(range(60))
    assert len(second.running) == 3
    second.train()
    assert second.together == [3] * 58 + [2, 1]
    (again,) = second.dispatcher.kept.factors
    assert (again.together, again.most) == (3, 3)
    assert str(RunView(second.dispatcher).packed[0]).startswith(
        "3 trials train together on each H100"
    )


def test_kept_factor_is_learned_anew_where_speeds_changed() -> None:
    factor = PackingFactor()
    learn(factor, lambda n: 1.0, 50)
    kept = factor.keep((), "", 0)
    assert kept is not None
    assert (kept.together, kept.most) == (1, 1)
    recalled = PackingFactor.recall(kept)
    assert learn(recalled, lambda n: 1.0, 50) == [1] * 50
    recalled = PackingFactor.recall(kept)
    learn(recalled, lambda n: 4.0 * n, 200)
    assert recalled.kept > 2


def test_kept_factor_knows_what_did_not_fit() -> None:
    factor = PackingFactor()
    learn(factor, float, 60)
    together = factor.kept
    factor.outgrew(together)
    kept = factor.keep((), "", 0)
    assert kept is not None
    assert kept.fits == kept.together == together - 1
    recalled = PackingFactor.recall(kept)
    assert max(learn(recalled, float, 100)) == together - 1


def test_factor_of_one_worker_alone_leaves_the_kept_number() -> None:
    device = Device(float, workers=1)
    model = (("model", 0),)
    kept = KeptFactor(model=model, kind="", together=3, most=3, rates=((3, 0.9),), nbytes=GIB)
    device.dispatcher.recall(KeptMeasurements(factors=(kept,)))
    device.ask(range(9))
    device.train()
    (factor,) = device.dispatcher.kept.factors
    assert (factor.together, factor.most) == (3, 3)
    assert dict(factor.rates).keys() == {1, 3}


@pytest.mark.parametrize(
    "wrong",
    [
        {"together": 0},
        {"most": 1},
        {"fits": 1},
        {"rates": [[0, 1.0]]},
        {"rates": [[1, 0.0]]},
        {"rates": [["1", 1.0]]},
        {"nbytes": -1},
        {"kind": None},
    ],
)
def test_invalid_factor_is_refused(wrong: Mapping[str, object]) -> None:
    document = KeptFactor(model=(), kind="", together=2).to_json()
    assert KeptFactor.from_json(document).together == 2
    with pytest.raises(ValueError, match=r"packing factor|must be"):
        KeptFactor.from_json({**document, **wrong})


def test_one_device_tries_what_is_not_known_yet() -> None:
    device = Device(lambda n: 1.0, devices=3)
    device.ask(range(120))
    assert len(device.running) == 3
    tried = 0
    while device.running:
        pairs = {w: device.beside(w) for w in device.running}
        assert sum(n > 1 for n in pairs.values()) <= 2
        tried += any(n > 1 for n in pairs.values())
        device.end_next()
    assert 0 < tried < 60
    assert device.together[-20:] == [1] * 20


@pytest.mark.parametrize(
    ("peak", "nbytes", "most"),
    [(0, 16 * GIB, 1), (GIB, 0, 1), (9 * GIB, 16 * GIB, 1), (5 * GIB, 16 * GIB, 2)],
    ids=["unknown use", "unknown size", "one fits", "two fit"],
)
def test_memory_bounds_what_runs_together(peak: int, nbytes: int, most: int) -> None:
    device = Device(float, nbytes=nbytes)
    device.peak = peak
    device.ask(range(100))
    device.train()
    assert max(device.together) == most


def test_a_stage_that_filled_memory_runs_again_alone() -> None:
    device = Device(float)
    device.ask(range(60))
    device.pack(2)
    worker, order = next(iter(device.running.items()))
    del device.running[worker]
    event = Failed(attempt=order.attempt, step=3, message="full", is_out_of_memory=True)
    device.go_on(device.dispatcher.handle(event, device.now))
    beside = []
    while device.running:
        beside += [
            len(device.running) for again in device.running.values() if again.node is order.node
        ]
        device.end_next()
    assert set(beside) == {1}
    assert not device.failed
    assert device.together[-20:] == [1] * 20


def test_a_stage_that_fills_memory_alone_fails() -> None:
    device = Device(float)
    device.ask([0])
    for _ in range(20):
        if not device.running:
            break
        order = device.running.popitem()[1]
        event = Failed(attempt=order.attempt, step=3, message="full", is_out_of_memory=True)
        device.go_on(device.dispatcher.handle(event, device.now))
    assert [failure.trial for failure in device.failed] == [0]


def test_a_worker_lost_beside_others_blames_no_trial() -> None:
    device = Device(float)
    device.ask(range(60))
    device.pack(2)
    worker, order = next(iter(device.running.items()))
    del device.running[worker]
    device.go_on(device.dispatcher.handle(WorkerLost(worker=worker), device.now))
    assert device.dispatcher.frontier.work(order.node).losses == 0
    device.train()
    assert not device.failed


@pytest.mark.parametrize(("workers", "lookahead"), [(4, 0.0), (2, 0.0), (2, 100.0)])
def test_other_models_wait_for_a_bounded_number(workers: int, lookahead: float) -> None:
    device = Device(lambda n: min(n, 2), workers=workers, lookahead=lookahead)
    device.ask(range(200))
    while device.together[-10:] != [2] * 10:
        device.end_next()
    before = len(device.together)
    values = {"lr": Constant(0.5), "model": Constant(1)}
    device.dispatcher.register(999, values, STEPS)
    device.go_on(device.dispatcher.extend(999, STEPS, 1.0, device.now))
    while not any(999 in order.node.requests for order in device.running.values()):
        device.end_next()
    assert len(device.together) - before < 20
    assert len(device.running) == 1


def test_stages_that_wait_for_another_class_empty_no_device() -> None:
    """The second model is slow on one class, so all of it waits for the other."""

    def slowness(values: Mapping[str, Value], kind: str) -> float:
        return 3.0 if values["model"] and kind == "slow" else 1.0

    device = Device(lambda n: min(n, 2), devices=2, kinds=("fast", "slow"), slowness=slowness)
    known = [
        KeptSpeed(model=(("model", model),), kind=kind, seconds=500.0 * each, steps=500.0)
        for model in (0, 1)
        for kind in device.kinds
        for each in [slowness({"model": model}, kind)]
    ]
    device.dispatcher.recall(KeptMeasurements(tuple(known)))
    for trial in range(600):
        device.ask([trial], model=trial % 2)
    on_slow = []
    while len(device.together) < 400:
        on_slow.append(sum(device.kind_of(worker) == "slow" for worker in device.running))
        device.end_next()
    assert on_slow[-300:] == [2] * 300


def test_stages_that_nobody_can_run_take_no_room() -> None:
    device = Device(lambda n: min(n, 3), devices=2, workers=3)
    device.ask(range(400))
    while device.together[-20:] != [3] * 20:
        device.end_next()
    dispatcher = device.dispatcher
    for trial in list(dispatcher.wanted):
        dispatcher.stop(trial, device.now)
    device.train()
    device.ask([1000, 1001])
    assert dispatcher.idle_workers == 2
    needs = Needs.of({"DISK": 1})
    for trial in range(2000, 2010):
        values = {"lr": Constant(0.1 + trial), "model": Constant(0)}
        dispatcher.register(trial, values, STEPS, needs=needs)
        device.go_on(dispatcher.extend(trial, STEPS, 0.0, device.now))
    assert dispatcher.idle_workers == 2


def test_workers_that_share_nothing_all_run() -> None:
    dispatcher = Dispatcher(root_key("packing", 0))
    for number in range(4):
        dispatcher.handle(WorkerJoined(worker=f"w{number}"), 0.0)
    assert dispatcher.idle_workers == 4
    assert list(RunView(dispatcher).claimable) == ["w0", "w1", "w2", "w3"]
    assert not list(RunView(dispatcher).beside)


def test_a_shared_device_counts_as_one_idle_worker() -> None:
    device = Device(float, devices=2)
    assert device.dispatcher.idle_workers == 2
    assert len(list(RunView(device.dispatcher).claimable)) == 2
    device.ask([0])
    assert device.dispatcher.idle_workers == 1
    assert len(device.dispatcher.slots) - len(list(RunView(device.dispatcher).beside)) == 2


def test_a_device_is_in_use_as_long_as_any_worker_of_it() -> None:
    device = Device(float, workers=2, devices=2)
    dispatcher = device.dispatcher
    dispatcher.handle(Granted(workers=frozenset({"w0"})), 0.0)
    device.ask([0])
    assert [*device.running] == ["w0"]
    dispatcher.handle(Granted(workers=None), 0.0)
    assert [*RunView(dispatcher).claimable] == ["w0", "w1"]
    assert [*RunView(dispatcher).busy_claims] == ["w0"]
    dispatcher.handle(Granted(workers=frozenset({"w1"})), 0.0)
    assert [*RunView(dispatcher).busy_claims] == ["w0"], "the stage goes on to its next step"
    device.train()
    assert [*RunView(dispatcher).busy_claims] == []


def test_beside_other_studies_one_worker_of_a_device_trains() -> None:
    device = Device(float, devices=2)
    device.dispatcher.handle(Granted(workers=frozenset({"w0", "w3", "w4"})), 0.0)
    device.ask(range(4))
    assert [*device.running] == ["w0"]
    assert len([*RunView(device.dispatcher).withheld]) == 7


def test_kept_factor_waits_while_other_studies_share_the_cluster() -> None:
    device = Device(lambda n: min(n, 3), devices=2)
    kept = KeptFactor(model=(("model", 0),), kind="", together=3, most=3, nbytes=GIB)
    device.dispatcher.recall(KeptMeasurements(factors=(kept,)))
    device.dispatcher.handle(Granted(workers=frozenset({"w0", "w1", "w2", "w5"})), 0.0)
    device.ask(range(30))
    assert sorted(device.running) == ["w0", "w1"], "one worker of each device"
    for _ in range(8):
        device.end_next()
    assert set(device.together) == {1}
    device.go_on(device.dispatcher.handle(Granted(workers=None), device.now))
    assert len(device.running) == 6, "three on each device, once the other study has ended"
    device.train()
    assert device.dispatcher.open.steps_executed == 30 * STEPS


def test_an_audit_has_a_device_alone_until_stages_may_share_it() -> None:
    device = Device(lambda n: min(n, 2), workers=2)
    dispatcher = device.dispatcher
    device.ask([0])
    audited = next(iter(device.running.values())).node
    device.train()
    dispatcher.handle(AuditsRun(nodes={"w0": audited}), device.now)
    assert dispatcher.idle_workers == 1, "w0 itself is next"
    device.ask(range(1, 80))
    assert [*device.running] == ["w0"]
    dispatcher.handle(AuditsRun(nodes={}), device.now)
    device.pack(2)


def test_an_audit_counts_as_a_stage_beside_others() -> None:
    device = Device(lambda n: min(n, 2), workers=3)
    device.ask(range(80))
    while device.together[-20:] != [2] * 20:
        device.end_next()
    (audits,) = {"w0", "w1", "w2"} - device.running.keys()
    node = next(iter(device.running.values())).node
    nodes = {audits: node}
    device.go_on(device.dispatcher.handle(AuditsRun(nodes=nodes), device.now))
    device.end_next()
    device.end_next()
    for _ in range(10):
        assert len({audits, *device.running}) == 2
        device.end_next()
    device.go_on(device.dispatcher.handle(AuditsRun(nodes={}), device.now))
    device.end_next()
    assert len(device.running) == 2


def test_an_audit_that_fills_memory_with_a_stage_fails_no_trial() -> None:
    device = Device(float, workers=2)
    device.ask([0])
    node = device.running["w0"].node
    device.dispatcher.handle(AuditsRun(nodes={"w1": node}), device.now)
    order = device.running.pop("w0")
    event = Failed(attempt=order.attempt, step=3, message="full", is_out_of_memory=True)
    device.go_on(device.dispatcher.handle(event, device.now))
    work = device.dispatcher.frontier.work(order.node)
    assert not work.raised_on
