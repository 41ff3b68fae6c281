"""check_resume passes correct trainers and names the defect of each wrong one."""

import itertools
import random
from functools import partial

import fsspec
import numpy as np
import pytest
import torch
from fsspec.implementations.dirfs import DirFileSystem
from sklearn.linear_model import SGDClassifier
from torch import nn

from dasktune.errors import TrainerError
from dasktune.sequences import MultiStep
from dasktune.trainer.base import Trainer
from dasktune.trainer.check_resume.check import CheckLimit, check_resume
from dasktune.trainer.check_resume.new_process import run_in_new_process
from dasktune.trainer.data import ResumableLoader
from dasktune.trainer.torch import TorchTrainer
from tests.forgetful import Slot, Tally
from tests.forked import run_forked

HP = {"lr": MultiStep(0.1, [4], 0.5), "batch_size": 8}

pytestmark = pytest.mark.process

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
        vars(self.model).update(state["model"])
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


def test_check_in_new_interpreters_passes():
    assert check(Net, run=run_in_new_process).ok


class Importing(Descent):
    def build(self, hp):
        from lengths_beside_the_script import START

        super().build(hp)
        self.weights = self.weights + START


@pytest.mark.process
def test_modules_beside_the_script_are_imported(tmp_path, monkeypatch):
    (tmp_path / "lengths_beside_the_script.py").write_text("START = 0.5\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert check(Importing, run=run_in_new_process).ok


@pytest.mark.parametrize("trainer_class", [Descent, Forest, Net, ByHand])
def test_correct_trainers_pass(trainer_class):
    report = check(trainer_class)
    assert report.differences == ()
    assert report.ok
    assert report.tolerance == 0
    assert str(report).splitlines()[0] == (
        "resume check passed: 3 + 3 steps with a new process in between are 6 steps in one go, "
        "bit for bit"
    )
    assert report.steps == 12


@pytest.mark.parametrize("trainer_class", [Descent, Forest, Net, ByHand])
def test_correct_trainers_pass_at_several_splits(trainer_class):
    report = check(trainer_class, split=None, total=None)
    assert report.ok, str(report)
    assert report.splits[:3] == (2, 3, 5)
    assert report.unchecked == ()


class InFiles(Descent):
    """Its file system notes the number of the process, in which nothing of a result is."""

    def build(self, hp):
        super().build(hp)
        self.files = DirFileSystem("data", fsspec.filesystem("file"))


def test_file_systems_may_differ_between_processes():
    assert str(check(InFiles)).startswith("resume check passed")


class ForgottenGenerator(Descent):
    def build(self, hp):
        super().build(hp)
        self.judge = Slot(np.random.default_rng(self.seed + 1))

    def noise(self):
        return self.judge.value.normal(size=3)


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
    """Keeps in a slot a second momentum, which its state lacks."""

    def build(self, hp):
        super().build(hp)
        self.second = Slot(np.zeros(3))

    def noise(self):
        self.second.value = 0.9 * self.second.value + super().noise()
        return self.second.value


class PlainMomentum(Descent):
    """Forgets its second momentum, which is kept beside its state."""

    def build(self, hp):
        super().build(hp)
        self.second = np.zeros(3)

    def noise(self):
        self.second = 0.9 * self.second + super().noise()
        return self.second


class PlainGenerator(Descent):
    """Forgets its generator, which is kept beside its state."""

    def state_dict(self):
        return {name: part for name, part in super().state_dict().items() if name != "rng"}

    def load_state_dict(self, state):
        super().load_state_dict({**state, "rng": self.rng.bit_generator.state})


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


STEPS_SEEN = Tally(0)


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
    calls = [Tally(0)]  # noqa: RUF012

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
        (ForgottenGenerator, "trainer.judge.value"),
        (GlobalNumpy, "NumPy's global random generator"),
        (GlobalPython, "Python's global random generator"),
        (ForgottenMomentum, "trainer.second.value"),
        (ForgottenOptimizer, "trainer.optimizer['state'][0]['momentum_buffer']"),
        (HiddenGlobal, "global STEPS_SEEN"),
        (HiddenClassAttribute, "HiddenClassAttribute.calls[0]"),
        (WrongLoading, "trainer.weights"),
        (LeftInEvalMode, "trainer.model.training"),
    ],
)
def test_forgotten_state_is_named_first(trainer_class, path):
    report = check(trainer_class)
    assert not report.ok
    assert report.differences[0].path == path, str(report)


@pytest.mark.parametrize("trainer_class", [PlainMomentum, PlainGenerator, NoBuffers])
def test_a_forgotten_plain_part_is_kept_beside_the_state(trainer_class):
    assert check(trainer_class).ok
    assert check(trainer_class, split=None, total=None).ok


def test_a_sampler_that_restarts_its_epoch_is_named():
    paths = [difference.path for difference in check(RestartedEpoch).differences]
    assert "trainer.loader['consumed']" in paths


def test_effects_are_named_with_their_step():
    report = check(ForgottenMomentum)
    effects = [difference for difference in report.differences if "['" in difference.path]
    assert effects[0].path == "state['weights']"
    assert "after step 4" in effects[0].reason
    assert effects[1].path == "metrics[4]['loss']"
    assert str(report).startswith("resume check failed: 3 + 3 steps")


class EveryEighth(Descent):
    """Counts its steps outside the state, and uses the number at every eighth."""

    def build(self, hp):
        super().build(hp)
        self.count = Tally(0)

    def train(self):
        super().train()
        self.count += 1
        if self.count % 8 == 0:
            self.weights = self.weights + 1.0


class EighthOfADefault(Descent):
    """Keeps the same number in a default argument."""

    def counted(self, kept=[0]):  # noqa: B006
        kept[0] += 1
        return kept[0]

    def train(self):
        super().train()
        if self.counted() % 80 == 0:
            self.weights = self.weights + 1.0


def counter():
    count = 0

    def following():
        nonlocal count
        count += 1
        return count

    return following


following = counter()


class EighthOfAClosure(Descent):
    """Keeps the same number in a variable of an enclosing function."""

    def train(self):
        super().train()
        if following() % 80 == 0:
            self.weights = self.weights + 1.0


class EighthOfAnIterator(EveryEighth):
    """Keeps the same number in an iterator."""

    def build(self, hp):
        Descent.build(self, hp)
        self.count = itertools.count(1)

    def train(self):
        Descent.train(self)
        if next(self.count) % 8 == 0:
            self.weights = self.weights + 1.0


@pytest.mark.parametrize(
    ("trainer_class", "path"),
    [
        (EveryEighth, "trainer.count"),
        (EighthOfADefault, "default kept of EighthOfADefault.counted[0]"),
        (EighthOfAClosure, "variable count of counter.<locals>.following"),
        (EighthOfAnIterator, "trainer.count"),
    ],
)
@pytest.mark.parametrize("splits", [{}, {"split": None, "total": None}])
def test_a_difference_without_effect_is_a_failure(trainer_class, path, splits):
    report = check(trainer_class, **splits)
    assert not report.ok
    assert report.differences[0].path == path, str(report)
    assert "when the state was saved" in report.differences[0].reason


class Accumulating(Net):
    """Accumulates gradients over three steps."""

    def build(self, hp):
        super().build(hp)
        self.count = 0

    def train(self):
        x, y = self.loader.next_batch()
        nn.functional.cross_entropy(self.model(x), y).backward()
        self.count += 1
        if self.count % 3 == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()


def test_only_the_first_resumption_that_differs_is_shown():
    report = check(ForgottenMomentum, split=None, total=None)
    first = report.splits[0]
    assert len(report.splits) > 1
    steps = [each.reason for each in report.differences if "after step" in each.reason]
    assert steps
    assert all(f"after step {first + 1}" in reason for reason in steps), str(report)
    assert [each.path for each in report.differences].count("trainer.second.value") == 1


class Without(Accumulating):
    """Says that each step clears them, and is wrong."""

    clears_gradients = True


def test_gradients_accumulated_over_three_steps_are_saved():
    report = check(Accumulating, split=None, total=None)
    assert report.ok, str(report)
    assert not check(Without, split=None, total=None).ok


class Stamped(EveryEighth):
    """Uses its count for a text alone, and says so."""

    harmless_differences = ("trainer.count", "trainer.log")

    def build(self, hp):
        super().build(hp)
        self.log = {}

    def train(self):
        Descent.train(self)
        self.count += 1
        self.log[self.count] = "trained"


class WronglyNamed(EveryEighth):
    """Calls a number harmless on which the next step depends."""

    harmless_differences = ("trainer.count",)

    def train(self):
        self.count += 1
        super().train()
        self.weights = self.weights * (1 - 0.01 * self.count)


def test_differences_that_the_trainer_names_are_harmless():
    assert check(Stamped).ok
    assert check(Stamped, split=None, total=None).ok


def test_a_difference_with_an_effect_is_never_harmless():
    report = check(WronglyNamed)
    assert not report.ok
    assert report.differences[0].path == "trainer.count"


class Overwrites(Descent):
    """Keeps its last batch and residual, which the next step overwrites before it reads them."""

    def train(self):
        super().train()
        self.batch = self.loader.state_dict()
        self.residual = self.x @ self.weights - self.y


def test_what_the_next_step_overwrites_is_no_difference():
    assert check(Overwrites, split=None, total=None).ok


class AtTheEpochsEnd(Descent):
    """Forgets in each epoch how many it has had, and uses the number from the second on."""

    def build(self, hp):
        super().build(hp)
        self.loader.batch_size = 4  # 10 steps in an epoch

    def setup(self, hp):
        self.lr = hp["lr"]

    def load_state_dict(self, state):
        super().load_state_dict(state)
        if self.loader.consumed == 36:
            self.loader.load_state_dict({**self.loader.state_dict(), "consumed": 32})


def test_an_end_of_an_epoch_is_looked_for():
    report = check(AtTheEpochsEnd, split=None, total=None)
    assert report.splits == (2, 3, 5, 9)
    assert (report.total, report.steps) == (11, 18 + 4 + 2)
    assert report.differences[0].path == "trainer.loader['consumed']", str(report)


def test_an_end_of_an_epoch_out_of_reach_is_said():
    class Long(Descent):
        def build(self, hp):
            super().build({**hp, "batch_size": 1})
            self.loader = ResumableLoader((np.zeros((300, 3)), np.zeros(300)), 1, seed=0)

        def setup(self, hp):
            self.lr = hp.get("lr", getattr(self, "lr", None))

    report = check(Long, split=None, total=None)
    assert report.ok
    assert report.unchecked == ("the end of an epoch, which would come after step 300",)
    assert "not checked: the end of an epoch" in str(report)


def test_constant_values_are_said_to_be_unchecked():
    report = check_resume(Descent, {"lr": 0.1, "batch_size": 8}, run=FORKED)
    assert report.ok
    assert report.unchecked == ("a change of a hyper-parameter: none changes in these steps",)


def test_a_limit_of_steps_is_kept():
    for steps in (4, 9, 14):
        limit = CheckLimit(steps=steps)
        report = check(Descent, split=None, total=None, limit=limit)
        assert report.ok
        assert report.steps <= steps
    assert check(EveryEighth, split=None, total=None, limit=CheckLimit(steps=4)).steps == 4


def test_time_that_is_over_is_said():
    limit = CheckLimit(seconds=0.0, free=7)
    report = check(Descent, split=None, total=None, limit=limit)
    assert (report.splits, report.total, report.steps) == ((2,), 3, 5)
    assert report.unchecked[0] == "resuming after steps 3 and 5, for want of time"
    assert (report.ok, report.is_cut_short) == (True, True)
    assert not check(Descent, split=None, total=None).is_cut_short
    none = check(Descent, split=None, total=None, limit=CheckLimit(seconds=0.0))
    assert (none.steps, none.splits, none.is_empty) == (0, (), True)
    assert str(none).startswith("resume check not done: resuming after steps 2, 3 and 5")


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


class CountedTrace(HiddenTrace):
    """Evaluation counts itself, and the next step depends on the count."""

    def evaluate(self):
        self.evaluations += 1
        return Descent.evaluate(self)


class UnkeptTrace(HiddenTrace):
    """The same with a number that is not kept beside the state."""

    evaluations = Tally(0)

    def evaluate(self):
        self.evaluations = Tally(1)
        return Descent.evaluate(self)


@pytest.mark.parametrize("trainer_class", [HiddenTrace, CountedTrace, UnkeptTrace])
def test_trace_outside_the_state_is_named(trainer_class):
    report = check(trainer_class)
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


@pytest.mark.gpu
@pytest.mark.parametrize("deterministic", [True, False])
def test_on_a_gpu(deterministic):
    trainer_class = type("OnGpu", (Net,), {"deterministic": deterministic})
    report = check(trainer_class, device="cuda", run=run_in_new_process)
    assert report.ok, str(report)
    assert report.tolerance == (0 if deterministic else 1e-3)
