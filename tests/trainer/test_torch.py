import copy
import random
import subprocess
import sys
from collections import deque

import numpy as np
import pytest
import torch
from torch import nn

from dasktune.errors import ConfigurationError, ResumeError, StateError
from dasktune.storage.codec import decode, encode
from dasktune.trainer import attributes
from dasktune.trainer.data import ResumableLoader
from dasktune.trainer.lifecycle import TrainerRun, run_alone
from dasktune.trainer.proof.remedies import Proving
from dasktune.trainer.torch import TorchTrainer

HP = {"lr": 0.05, "batch_size": 8}


class Net(TorchTrainer):
    """Everything at once: BN, dropout, momentum, a scheduler, an EMA, loaders, generators."""

    def build(self, hp):
        self.images = torch.rand(40, 1, 6, 6)
        self.labels = torch.randint(0, 3, (40,))
        self.model = nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Flatten(),
            nn.Linear(64, 3),
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=hp["lr"])
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [2, 4])
        self.ema = torch.zeros(3)
        self.heads = [{"aux": nn.Linear(2, 2)}]
        self.loader = ResumableLoader((self.images, self.labels), hp["batch_size"], seed=self.seed)
        self.generator = np.random.default_rng(self.seed)
        self.seen = 0
        self.losses = []

    def setup(self, hp):
        if "batch_size" in hp:
            self.loader.batch_size = hp["batch_size"]

    def train(self):
        self.model.train()
        x, y = self.loader.next_batch()
        x = x + 0.1 * torch.randn_like(x) + random.random() + float(np.random.rand())
        x = x * float(self.generator.random())
        self.optimizer.zero_grad()
        logits = self.model(x)
        loss = nn.functional.cross_entropy(logits, y)
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.ema.mul_(0.9).add_(logits.detach().mean(0))
        self.seen += len(x)
        self.losses.append(loss)

    def evaluate(self):
        random.random(), np.random.rand(), torch.rand(1), self.generator.random()
        return {"loss": nn.functional.cross_entropy(self.model(self.images), self.labels)}


def start(trainer_class=Net, seed=0, **values):
    return TrainerRun.start(trainer_class, HP | values, config={}, seed=seed)


def trained(steps, trainer_class=Net):
    run = start(trainer_class)
    for _ in range(steps):
        run.advance(HP)
    return run


def saved(run):
    snapshot = encode(run.state())
    return snapshot, decode(snapshot.document, snapshot.data)


def resumed(state, step, trainer_class=Net):
    return TrainerRun.resume(
        trainer_class, step=step, first_values=HP, last_values=HP, state=state, config={}, seed=0
    )


def proved(step, trainer_class):
    """Return a resumed run that has compared all that it holds with the one that saved."""
    run = TrainerRun.start(trainer_class, HP, config={}, seed=0, proving=Proving())
    for _ in range(step):
        run.advance(HP)
    state = run.state()
    snapshot, proof = encode(state), run.proof(state)
    return TrainerRun.resume(
        trainer_class,
        step=step,
        first_values=HP,
        last_values=HP,
        state=decode(snapshot.document, snapshot.data),
        config={},
        seed=0,
        proving=Proving(proof=proof),
    )


@pytest.mark.parametrize("split", [1, 3, 6])
def test_resuming_is_exact(split):
    whole, _ = saved(trained(split + 4))
    _, state = saved(trained(split))
    torch.rand(7), random.random(), np.random.rand(3)
    run = resumed(state, split)
    for _ in range(4):
        run.advance(HP)
    assert saved(run)[0].digest == whole.digest


def test_the_state_holds_what_matters_and_not_the_data():
    state = trained(2).state()
    assert sorted(state["objects"]) == [
        "generator",
        "heads[0]['aux']",
        "loader",
        "model",
        "optimizer",
        "scheduler",
    ]
    assert sorted(state["values"]) == ["ema", "losses", "seen"]
    assert sorted(state["generators"]) == ["numpy", "python", "torch"]


def test_the_seed_decides_the_start():
    def weights(seed):
        return start(seed=seed).trainer.model[0].weight.tolist()

    assert weights(1) == weights(1)
    assert weights(1) != weights(2)


def test_loading_keeps_objects():
    _, state = saved(trained(3))
    run = start()
    before = (
        run.trainer.model,
        run.trainer.optimizer,
        run.trainer.ema,
        run.trainer.model[0].weight,
    )
    run.trainer.load_state_dict(state)
    after = (run.trainer.model, run.trainer.optimizer, run.trainer.ema, run.trainer.model[0].weight)
    assert all(old is new for old, new in zip(before, after, strict=True))
    assert run.trainer.optimizer.param_groups[0]["params"][0] is run.trainer.model[0].weight
    assert run.trainer.scheduler.last_epoch == 3
    assert type(run.trainer.scheduler.milestones).__name__ == "Counter"


def test_evaluate_leaves_no_trace():
    run = trained(2)
    run.trainer.model[1].eval()
    before = encode(run.state()).digest
    assert run.evaluate() == run.evaluate()
    assert encode(run.state()).digest == before
    assert [part.training for part in run.trainer.model] == [True, False, True, True, True, True]


def test_evaluate_runs_in_eval_mode_without_gradients():
    class Probe(Net):
        def evaluate(self):
            return {"training": self.model.training, "gradients": torch.is_grad_enabled()}

    assert trained(1, Probe).evaluate() == {"training": 0, "gradients": 0}
    assert torch.is_grad_enabled()


def test_modes_frozen_parameters_and_hidden_buffers_are_state():
    class Freezing(Net):
        def build(self, hp):
            super().build(hp)
            self.model[1].register_buffer("hidden", torch.zeros(2), persistent=False)

        def train(self):
            super().train()
            self.model[1].eval()
            self.model[0].weight.requires_grad_(False)
            self.model[1].hidden += 1

    _, state = saved(trained(2, Freezing))
    model = resumed(state, 2, Freezing).trainer.model
    assert not model[1].training
    assert model[2].training
    assert not model[0].weight.requires_grad
    assert model[0].bias.requires_grad
    assert model[1].hidden.tolist() == [2, 2]


def test_only_changed_arrays_are_state():
    class Arrays(Net):
        def build(self, hp):
            super().build(hp)
            self.still = np.arange(3)
            self.moving = np.arange(3)
            self.pair = (torch.ones(2), [torch.ones(2)])
            self.weight = nn.Parameter(torch.ones(1))
            self.history = []

        def train(self):
            self.moving[0] += 1
            self.pair[1][0].add_(1)
            self.history.append(torch.full((1,), float(self.moving[0])))
            with torch.no_grad():
                self.weight.add_(1)

    _, state = saved(trained(2, Arrays))
    assert sorted(state["values"]) == ["history", "losses", "moving", "pair", "seen", "weight"]
    trainer = resumed(state, 2, Arrays).trainer
    assert trainer.moving.tolist() == [2, 1, 2]
    assert trainer.pair[1][0].tolist() == [3, 3]
    assert [item.tolist() for item in trainer.history] == [[1], [2]]
    assert isinstance(trainer.weight, nn.Parameter)
    assert trainer.weight.item() == 3


class Behind(TorchTrainer):
    """Changes tensors in ways that torch's version counter does not see."""

    def build(self, hp):
        self.ema = {"weight": torch.ones(3)}
        self.view = torch.zeros(2)
        self.seen = {"tensor": torch.zeros(1), "names": set()}

    def setup(self, hp):
        pass

    def train(self):
        self.ema["weight"].data.mul_(0.5)
        self.view.numpy()[:] += 1
        self.seen["names"].add(f"step {len(self.seen['names'])}")

    def evaluate(self):
        return {"loss": float(self.ema["weight"].sum() + self.view.sum())}


def test_changes_behind_the_version_counter_are_state():
    _, state = saved(trained(2, Behind))
    assert sorted(state["values"]) == ["ema", "seen", "view"]
    trainer = resumed(state, 2, Behind).trainer
    assert trainer.ema["weight"].tolist() == [0.25] * 3
    assert trainer.view.tolist() == [2, 2]
    assert trainer.seen["names"] == {"step 0", "step 1"}


class Agent:
    """An object of another class that holds what a step depends on."""

    __slots__ = ("net", "noise", "optimizer")

    def __init__(self):
        self.net = nn.Linear(2, 2)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.noise = torch.Generator().manual_seed(0)


class WithAgent(TorchTrainer):
    def build(self, hp):
        self.agent = Agent()
        self.samples = torch.utils.data.TensorDataset(torch.rand(8, 2))
        self.loader = torch.utils.data.DataLoader(
            self.samples, 4, shuffle=True, generator=torch.Generator().manual_seed(1)
        )

    def setup(self, hp):
        pass

    def train(self):
        for (x,) in self.loader:
            self.agent.optimizer.zero_grad()
            noisy = x + torch.rand(2, generator=self.agent.noise)
            self.agent.net(noisy).square().mean().backward()
            self.agent.optimizer.step()

    def evaluate(self):
        return {"loss": float(self.agent.net.weight.sum())}


def test_parts_of_other_objects_are_state():
    whole, _ = saved(trained(5, WithAgent))
    _, state = saved(trained(2, WithAgent))
    paths = ["agent.net", "agent.noise", "agent.optimizer", "loader.generator"]
    assert sorted(state["objects"]) == paths
    run = resumed(state, 2, WithAgent)
    for _ in range(3):
        run.advance(HP)
    assert saved(run)[0].digest == whole.digest


def test_objects_beyond_the_limit_are_not_looked_at(monkeypatch):
    monkeypatch.setattr(attributes, "MOST_ITEMS", 3)
    items = [np.random.default_rng(seed) for seed in range(5)]
    assert sorted(attributes.objects({"a": items, "b": items[3]})) == ["a[0]", "a[1]", "b"]


class Persistent(TorchTrainer):
    def build(self, hp):
        self.loader = torch.utils.data.DataLoader(
            torch.arange(8), 4, num_workers=1, persistent_workers=True
        )

    def setup(self, hp):
        pass

    def train(self):
        list(self.loader)

    def evaluate(self):
        return {"loss": 0.0}


class Holder:
    def __init__(self, part):
        self.part = part
        self.log = 0


def append(part):
    part.append(3)


def put(part):
    part["steps"] += 1


def add_member(part):
    part.add("b")


def write(part):
    part[0] = 5


def raise_last(part):
    part[-1][0] += 1


OTHERS = {
    "deque": (lambda: deque([1, 2]), append),
    "dict": (lambda: {"steps": 0, "made": deque()}, put),
    "set": (lambda: {"a"}, add_member),
    "array": (lambda: np.zeros(2), write),
    "tensor": (lambda: torch.zeros(2), write),
    "objects": (lambda: np.array([1, "a"], dtype=object), write),
    "nested": (lambda: Holder([[1], [1]]), lambda holder: raise_last(holder.part)),
}


class WithOthers(TorchTrainer):
    harmless_differences = ("trainer.holder.log",)
    kind = "deque"
    changes_part = False

    def build(self, hp):
        self.holder = Holder(OTHERS[self.kind][0]())
        self.function = len

    def setup(self, hp):
        pass

    def train(self):
        self.holder.log += 1
        if self.changes_part:
            OTHERS[self.kind][1](self.holder.part)

    def evaluate(self):
        return {"loss": 0.0}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_a_state_does_not_hold_is_set_if_it_is_plain(kind):
    still = type("Still", (WithOthers,), {"kind": kind})
    assert proved(2, still).trainer.holder.log == 0
    changing = type("Changing", (still,), {"changes_part": True})
    if kind == "objects":
        with pytest.raises(ResumeError, match=r"trainer.holder.part"):
            proved(2, changing)
        return
    part = OTHERS[kind][0]()
    for _ in range(2):
        OTHERS[kind][1](part)
    held = proved(2, changing).trainer.holder.part
    assert str(getattr(held, "part", held)) == str(getattr(part, "part", part))


def test_an_attribute_made_in_training_is_missed():
    class Late(WithOthers):
        def train(self):
            self.late = Holder(getattr(self, "late", None))

    with pytest.raises(ResumeError, match=r"trainer.late.part: is missing after loading"):
        proved(1, Late)


def test_a_state_of_an_earlier_version_is_loaded():
    _, state = saved(trained(2, WithOthers))
    assert resumed({**state, "others": {"holder": "0" * 32}}, 2, WithOthers).step == 2


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
def test_persistent_workers_are_refused():
    message = r"trainer.loader._iterator: the position of a _MultiProcessingDataLoaderIter"
    with pytest.raises(StateError, match=message):
        trained(1, Persistent).state()


@pytest.mark.parametrize("hold", [lambda items: deque([items]), lambda items: {"x": (items,)}])
def test_iterators_in_containers_are_refused(hold):
    class Holding(Net):
        def build(self, hp):
            super().build(hp)
            self.held = hold(iter([1, 2]))

    with pytest.raises(StateError, match="the position of a list_iterator cannot be saved"):
        start(Holding).state()


def test_iterators_are_refused():
    class Iterating(Net):
        def build(self, hp):
            super().build(hp)
            self.batches = {"train": iter([1, 2])}

    with pytest.raises(StateError, match=r"trainer.batches\['train'\]: the position of a list_it"):
        start(Iterating).state()


def test_a_state_of_other_objects_is_refused():
    _, state = saved(trained(1))
    missing, extra = copy.copy(state), copy.copy(state)
    missing["objects"] = {k: v for k, v in state["objects"].items() if k != "model"}
    extra["objects"] = {**state["objects"], "teacher": {}}
    with pytest.raises(StateError, match=r"state\['objects'\]\['model'\]: not in the state"):
        start().trainer.load_state_dict(missing)
    with pytest.raises(StateError, match=r"\['teacher'\]: the trainer has built none"):
        start().trainer.load_state_dict(extra)


def test_move_that_replaces_parameters_is_refused():
    with pytest.raises(ConfigurationError, match=r"cannot move to 'meta' in place; in build\(\)"):
        TrainerRun.start(Net, HP, config={}, seed=0, device="meta")


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", [torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.Adam])
def test_modules_move_to_the_gpu_with_their_optimizer(optimizer):
    class Moving(Net):
        def build(self, hp):
            super().build(hp)
            self.optimizer = optimizer(self.model.parameters())

        def train(self):
            x, y = self.to_device(self.loader.next_batch())
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()

    run = TrainerRun.start(Moving, HP, config={}, seed=0, device="cuda")
    before = run.trainer.model[0].weight.clone()
    run.advance(HP)
    assert not torch.equal(run.trainer.model[0].weight, before)
    _, state = saved(run)
    run.advance(HP)
    again = TrainerRun.resume(
        Moving,
        step=1,
        first_values=HP,
        last_values=HP,
        state=state,
        config={},
        seed=0,
        device="cuda",
    )
    again.advance(HP)
    assert torch.equal(again.trainer.model[0].weight, run.trainer.model[0].weight)


class Optional(TorchTrainer):
    """Changes options of torch where its hyper-parameter says so."""

    deterministic = False

    def build(self, hp):
        if hp["changes"]:
            torch.set_default_dtype(torch.float64)
            torch.set_float32_matmul_precision("medium")
            torch.backends.cudnn.benchmark = True
            torch.use_deterministic_algorithms(True, warn_only=True)
        self.x = torch.zeros(())

    def setup(self, hp):
        pass

    def train(self):
        self.x += torch.rand(())

    def evaluate(self):
        algorithms = torch.are_deterministic_algorithms_enabled()
        precise = torch.get_float32_matmul_precision() == "highest"
        return {
            "x": self.x,
            "options": [algorithms, torch.backends.cudnn.benchmark, not precise].count(True),
        }


@pytest.fixture
def options_of_torch():
    """Take back the options of torch that a test has changed."""
    yield
    start(Optional, changes=False)


@pytest.mark.usefixtures("options_of_torch")
def test_build_begins_without_the_options_of_the_last():
    alone = run_alone(Optional, {"changes": False}, 2).metrics
    assert [values["options"] for values in alone.values()] == [0, 0]
    assert run_alone(Optional, {"changes": True}, 2).metrics[2]["options"] == 3
    assert run_alone(Optional, {"changes": False}, 2).metrics == alone


@pytest.mark.usefixtures("options_of_torch")
def test_build_after_a_deterministic_one_is_free():
    start(Net)
    assert torch.are_deterministic_algorithms_enabled()
    assert run_alone(Optional, {"changes": False}, 1).metrics[1]["options"] == 0


class HostTensor(TorchTrainer):
    """Holds a tensor on the CPU from its first step on, wherever it trains."""

    def build(self, hp):
        self.order = None

    def setup(self, hp):
        pass

    def train(self):
        self.order = torch.arange(3)

    def evaluate(self):
        return {}


def test_tensor_made_on_the_host_comes_back_there():
    run = TrainerRun.start(HostTensor, HP, config={}, seed=0, device="meta")
    run.advance(HP)
    _, state = saved(run)
    again = TrainerRun.start(HostTensor, HP, config={}, seed=0, device="meta")
    again.trainer.load_state_dict(state)
    assert again.trainer.order.tolist() == [0, 1, 2]
    del state["on_host"]  # as older versions wrote it
    again = TrainerRun.start(HostTensor, HP, config={}, seed=0, device="meta")
    again.trainer.load_state_dict(state)
    assert again.trainer.order.is_meta


def test_tensors_of_an_optimizer_go_where_its_own_are():
    saved_group = {"lr": torch.tensor(0.1), "betas": (0.9, 0.99), "decay": torch.tensor(0.2)}
    own = {"lr": torch.tensor(0.3, device="meta"), "betas": (0.9, 0.99), "decay": 0.1}
    placed = attributes.placed_like(saved_group, own)
    assert placed["lr"].is_meta
    assert (placed["betas"], float(placed["decay"])) == ((0.9, 0.99), pytest.approx(0.2))


def test_learning_rate_in_a_tensor_is_loaded():
    def optimizer(rate):
        return torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=torch.tensor(rate))

    first, second = optimizer(0.5), optimizer(0.1)
    attributes.load_into(second, attributes.state_of(first))
    assert float(second.param_groups[0]["lr"]) == 0.5


def test_to_device_takes_tensors_arrays_and_containers():
    trainer = Net()
    trainer.device = "meta"
    moved = trainer.to_device({"x": [torch.ones(2), np.ones(3)], "name": "a"})
    assert moved["x"][0].device.type == moved["x"][1].device.type == "meta"
    assert moved["name"] == "a"


def test_run_alone_repeats_itself():
    sequences = {"lr": 0.05, "batch_size": 8}
    first, second = (run_alone(Net, sequences, 3, states_at=[3]) for _ in range(2))
    assert first.metrics == second.metrics
    assert encode(first.states[3]).digest == encode(second.states[3]).digest


@pytest.mark.process
def test_torch_is_loaded_on_first_use_only():
    script = (
        "import sys, dasktune.trainer as t; assert 'torch' not in sys.modules; "
        "t.TorchTrainer; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
