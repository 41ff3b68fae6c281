"""check_resume passes correct trainers and names the defect of each wrong one."""

import random
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.linear_model import SGDClassifier
from torch import nn

from dasktune.errors import ConfigurationError, TrainerError
from dasktune.sequences import MultiStep
from dasktune.trainer.base import Trainer
from dasktune.trainer.check_resume.check import check_resume
from dasktune.trainer.check_resume.new_process import run_in_new_process
from dasktune.trainer.data import ResumableLoader
from dasktune.trainer.torch import TorchTrainer
from tests.forked import run_forked

HP = {"lr": MultiStep(0.1, [4], 0.5), "batch_size": 8}

FORKED = partial(run_in_new_process, execute=run_forked)


def check(trainer_class, **arguments):
    options = {"split": 3, "total": 6, "run": FORKED, **arguments}
    return check_resume(trainer_class, HP, **options)


class Descent(Trainer):
    """NumPy: linear regression with momentum, noise from its own generator."""

    def build(self, hp):
        generator = np.random.default_rng(self.seed)
        self.x = generator.normal(size=(40, 3))
        self.y = self.x @ np.array([1.0, -2.0, 0.5])
        self.loader = ResumableLoader((self.x, self.y), hp["batch_size"], seed=self.seed)
        self.rng = np.random.default_rng(self.seed + 1)
        self.weights = np.zeros(3)
        self.momentum = np.zeros(3)

    def setup(self, hp):
        self.lr = hp.get("lr", getattr(self, "lr", None))
        self.loader.batch_size = hp.get("batch_size", self.loader.batch_size)

    def train(self):
        x, y = self.loader.next_batch()
        gradient = x.T @ (x @ self.weights - y) / len(x) + 0.01 * self.noise()
        self.momentum = 0.9 * self.momentum + gradient
        self.weights = self.weights - self.lr * self.momentum

    def noise(self):
        return self.rng.normal(size=3)

    def evaluate(self):
        return {"loss": np.mean((self.x @ self.weights - self.y) ** 2)}

    def state_dict(self):
        return {
            "weights": self.weights,
            "momentum": self.momentum,
            "loader": self.loader.state_dict(),
            "rng": self.rng.bit_generator.state,
        }

    def load_state_dict(self, state):
        self.weights = state["weights"]
        self.momentum = state["momentum"]
        self.loader.load_state_dict(state["loader"])
        self.rng.bit_generator.state = state["rng"]


class Forest(Trainer):
    """scikit-learn: partial_fit."""

    def build(self, hp):
        generator = np.random.default_rng(self.seed)
        self.x = generator.normal(size=(60, 4))
        self.y = (self.x[:, 0] > 0).astype(int)
        self.model = SGDClassifier(random_state=self.seed)
        self.loader = ResumableLoader((self.x, self.y), hp["batch_size"], seed=self.seed)

    def setup(self, hp):
        if "lr" in hp:
            self.model.set_params(alpha=hp["lr"] / 100)

    def train(self):
        self.model.partial_fit(*self.loader.next_batch(), classes=[0, 1])

    def evaluate(self):
        return {"accuracy": self.model.score(self.x, self.y)}

    def state_dict(self):
        names = ("coef_", "intercept_", "t_")
        return {
            "model": {name: getattr(self.model, name) for name in names},
            "loader": self.loader.state_dict(),
        }

    def load_state_dict(self, state):
        # Makes the arrays for the values below.
        self.model.partial_fit(self.x[:2], [0, 1], classes=[0, 1])
        for name, value in state["model"].items():
            setattr(self.model, name, value)
        self.loader.load_state_dict(state["loader"])


def network():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.3), nn.Flatten(), nn.Linear(64, 2)
    )


class Net(TorchTrainer):
    """Torch: a CNN with batch norm, dropout and momentum."""

    def build(self, hp):
        self.x, self.y = torch.rand(32, 1, 6, 6), torch.randint(0, 2, (32,))
        self.model = network()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=hp["lr"], momentum=0.9)
        self.loader = ResumableLoader((self.x, self.y), hp["batch_size"], seed=self.seed)

    def setup(self, hp):
        if "lr" in hp:
            self.optimizer.param_groups[0]["lr"] = hp["lr"]

    def train(self):
        self.model.train()
        x, y = self.to_device(self.loader.next_batch())
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()

    def evaluate(self):
        logits = self.model(self.to_device(self.x))
        return {"loss": nn.functional.cross_entropy(logits, self.to_device(self.y))}


class ByHand(Net):
    """The same with a complete state written by hand, and without the contexts of the base."""

    building = Trainer.building
    evaluating = Trainer.evaluating

    def build(self, hp):
        torch.manual_seed(self.seed)
        super().build(hp)

    def evaluate(self):
        training = self.model.training
        self.model.eval()
        with torch.no_grad():
            metrics = super().evaluate()
        self.model.train(training)
        return metrics

    def state_dict(self):
        return {
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "loader": self.loader.state_dict(),
            "rng": torch.get_rng_state(),
        }

    def load_state_dict(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loader.load_state_dict(state["loader"])
        torch.set_rng_state(state["rng"])


@pytest.mark.process
def test_check_in_new_interpreters_passes():
    assert check(Net, run=run_in_new_process).ok


@pytest.mark.parametrize("trainer_class", [Descent, Forest, Net, ByHand])
def test_correct_trainers_pass(trainer_class):
    report = check(trainer_class)
    assert report.differences == ()
    assert report.ok
    assert report.tolerance == 0
    assert str(report) == (
        "resume check passed: 3 + 3 steps with a new process in between are 6 steps in one go, "
        "bit for bit"
    )


class ForgottenGenerator(Descent):
    def state_dict(self):
        return {name: part for name, part in super().state_dict().items() if name != "rng"}

    def load_state_dict(self, state):
        super().load_state_dict({**state, "rng": self.rng.bit_generator.state})


class GlobalNumpy(Descent):
    def build(self, hp):
        super().build(hp)
        np.random.seed(self.seed)

    def noise(self):
        return np.random.normal(size=3)


class GlobalPython(Descent):
    def build(self, hp):
        super().build(hp)
        random.seed(self.seed)

    def noise(self):
        return random.gauss(0, 1)


class ForgottenMomentum(Descent):
    def load_state_dict(self, state):
        super().load_state_dict({**state, "momentum": np.zeros(3)})

    def state_dict(self):
        return {name: part for name, part in super().state_dict().items() if name != "momentum"}


class ForgottenOptimizer(ByHand):
    def state_dict(self):
        return {name: part for name, part in super().state_dict().items() if name != "optimizer"}

    def load_state_dict(self, state):
        super().load_state_dict({**state, "optimizer": self.optimizer.state_dict()})


class RestartedEpoch(Descent):
    def state_dict(self):
        return {**super().state_dict(), "loader": {"batch_size": self.loader.batch_size}}

    def load_state_dict(self, state):
        super().load_state_dict(
            {**state, "loader": {**self.loader.state_dict(), **state["loader"]}}
        )


STEPS_SEEN = 0


class HiddenGlobal(Descent):
    def train(self):
        global STEPS_SEEN
        STEPS_SEEN += 1
        super().train()
        self.weights = self.weights * (1 - 0.01 * STEPS_SEEN)


class NoBuffers(ByHand):
    def state_dict(self):
        return {**super().state_dict(), "model": dict(self.model.named_parameters())}

    def load_state_dict(self, state):
        self.model.load_state_dict(state["model"], strict=False)
        super().load_state_dict({**state, "model": self.model.state_dict()})


class HiddenClassAttribute(Descent):
    calls = [0]  # noqa: RUF012

    def noise(self):
        self.calls[0] += 1
        return self.calls[0] * np.ones(3)


class LeftInEvalMode(ByHand):
    def train(self):
        x, y = self.loader.next_batch()
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()

    def evaluate(self):
        metrics = super().evaluate()
        self.model.eval()
        return metrics


class WrongLoading(Descent):
    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.weights = self.weights.astype(np.float32).astype(float)


@pytest.mark.parametrize(
    ("trainer_class", "path"),
    [
        (ForgottenGenerator, "trainer.rng"),
        (GlobalNumpy, "NumPy's global random generator"),
        (GlobalPython, "Python's global random generator"),
        (ForgottenMomentum, "trainer.momentum"),
        (ForgottenOptimizer, "trainer.optimizer['state'][0]['momentum_buffer']"),
        (HiddenGlobal, "global STEPS_SEEN"),
        (HiddenClassAttribute, "HiddenClassAttribute.calls[0]"),
        (NoBuffers, "trainer.model['1.running_mean']"),
        (WrongLoading, "state['weights']"),
        (LeftInEvalMode, "trainer.model.training"),
    ],
)
def test_forgotten_state_is_named_first(trainer_class, path):
    report = check(trainer_class)
    assert not report.ok
    assert report.differences[0].path == path, str(report)


def test_a_sampler_that_restarts_its_epoch_is_named():
    paths = [difference.path for difference in check(RestartedEpoch).differences]
    assert "trainer.loader._position.consumed" in paths


def test_effects_are_named_with_their_step():
    report = check(ForgottenMomentum)
    effects = [difference for difference in report.differences if "['" in difference.path]
    assert effects[0].path == "state['weights']"
    assert "after step 4" in effects[0].reason
    assert effects[1].path == "metrics[4]['loss']"
    assert str(report).startswith("resume check failed: 3 + 3 steps")


class Timed(Descent):
    """Depends on a file, which no look at the trainer can find."""

    def noise(self):
        with open(self.config["file"], "a+") as file:
            file.write("x")
            return file.tell() * np.ones(3)


def test_cause_outside_the_trainer_is_reported(tmp_path):
    report = check(Timed, config={"file": str(tmp_path / "file")})
    assert report.differences[0].path == "something outside the state"


class DrawingEvaluation(Descent):
    def evaluate(self):
        self.rng.random()
        return super().evaluate()


class RandomMetric(Descent):
    def build(self, hp):
        super().build(hp)
        self.judge = np.random.default_rng(0)

    def evaluate(self):
        return {"loss": self.judge.random()}

    def state_dict(self):
        return {**super().state_dict(), "judge": self.judge.bit_generator.state}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.judge.bit_generator.state = state["judge"]


class HiddenTrace(Descent):
    """Evaluation changes an attribute outside the state, on which the next step depends."""

    evaluations = 0

    def evaluate(self):
        self.evaluations = 1
        return super().evaluate()

    def noise(self):
        return self.evaluations * super().noise()


@pytest.mark.parametrize(
    ("trainer_class", "path", "reason"),
    [
        (DrawingEvaluation, "state['rng']['state']['state']", "is changed by evaluate"),
        (RandomMetric, "metrics['loss']", "evaluated twice, must be"),
    ],
)
def test_traces_of_evaluate_are_named(trainer_class, path, reason):
    report = check(trainer_class)
    assert report.differences[0].path == path, str(report)
    assert report.differences[0].reason.startswith(reason)


def test_trace_outside_the_state_is_named():
    report = check(HiddenTrace)
    assert not report.ok
    assert "trainer.evaluations" in [difference.path for difference in report.differences]


class Failing(Descent):
    def train(self):
        raise RuntimeError("no more memory")


class Unstorable(Descent):
    def state_dict(self):
        return {**super().state_dict(), "where": object()}


@pytest.mark.parametrize(
    ("trainer_class", "message"),
    [
        (Failing, "Failing failed in check_resume: RuntimeError: no more memory"),
        (Unstorable, r"Unstorable failed .*state\['where'\]"),
    ],
)
def test_a_failure_comes_with_its_traceback(trainer_class, message):
    with pytest.raises(TrainerError, match=message) as caught:
        check(trainer_class)
    assert caught.value.traceback.startswith("Traceback")


def test_bad_arguments_are_refused_at_once():
    class Incomplete:
        build = setup = train = evaluate = load_state_dict = Descent.build

    with pytest.raises(ConfigurationError) as caught:
        check(Incomplete, split=6)
    assert caught.value.problems == (
        "Incomplete must define state_dict()",
        "split must be >= 1 and less than total, got 6 of 6",
    )


@pytest.mark.gpu
@pytest.mark.parametrize("deterministic", [True, False])
def test_on_a_gpu(deterministic):
    trainer_class = type("OnGpu", (Net,), {"deterministic": deterministic})
    report = check(trainer_class, device="cuda", run=run_in_new_process)
    assert report.ok, str(report)
    assert report.tolerance == (0 if deterministic else 1e-3)
