"""The trainer of Lightning: exact, as Lightning itself trains, and clear about mistakes."""

from __future__ import annotations

import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import dasktune as dt
from dasktune.errors import ConfigurationError, TrainerError
from dasktune.sequences import Cosine, Exponential, MultiStep, Piecewise
from dasktune.trainer.check_resume.check import check_resume
from dasktune.trainer.fingerprint.fingerprint import fingerprint
from dasktune.trainer.lifecycle import run_alone
from tests.forked import fork_for_resume_checks
from tests.integrations.exact import assert_resumes, single_thread

torch = pytest.importorskip("torch")
L = pytest.importorskip("lightning.pytorch")

from lightning.pytorch.loggers import CSVLogger  # noqa: E402
from torch.optim.lr_scheduler import (  # noqa: E402
    CosineAnnealingLR,
    ExponentialLR,
    MultiStepLR,
    StepLR,
)
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

pytestmark = [
    pytest.mark.framework("lightning"),
    pytest.mark.filterwarnings("ignore:.*(does not have many workers|number of|no `val_data)"),
]


class Net(L.LightningModule):
    def __init__(self, lr: float, width: int = 8, weight: float = 1.0) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(4, width), torch.nn.BatchNorm1d(width), torch.nn.Dropout(0.2),
            torch.nn.Linear(width, 1),
        )  # fmt: skip
        self.batches = 0

    def training_step(self, batch: Any, index: int) -> Any:
        x, y = batch
        self.batches += 1
        loss = self.hparams.weight * ((self.net(x)[:, 0] - y) ** 2).mean() / self.batches**0.1
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        x, y = batch
        self.log("val_loss", ((self.net(x)[:, 0] - y) ** 2).mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)


class Scheduled(Net):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        steps = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        return [optimizer], [steps, {"scheduler": plateau, "monitor": "val_loss"}]


class Data(L.LightningDataModule):
    def __init__(self, batch_size: int = 8) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        x = torch.rand(64, 4)
        data = TensorDataset(x, x.sum(1))
        self.train, self.val = torch.utils.data.random_split(data, [48, 16])

    def train_dataloader(self) -> Any:
        return DataLoader(self.train, self.batch_size, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(self.val, 16)


def loaders(batch_size: int = 8) -> Any:
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(64, 4, generator=generator)
    data = TensorDataset(x, x.sum(1))
    return DataLoader(data, batch_size, shuffle=True, generator=generator), DataLoader(data, 64)


class Counting(L.Callback):
    """Keeps a number that later steps depend on, and has no state_dict."""

    def __init__(self) -> None:
        self.epochs = 0

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self.epochs += 1
        trainer.optimizers[0].param_groups[0]["weight_decay"] = 0.01 * self.epochs


def trainer(*given: Any, **options: Any) -> Any:
    return dt.integrations.lightning.trainer(*given, log_every_n_steps=1, **options)


def callbacks() -> list[Any]:
    return [
        L.callbacks.EarlyStopping("val_loss", patience=3),
        L.callbacks.ModelCheckpoint(monitor="val_loss", save_top_k=2),
        Counting(),
    ]


@pytest.mark.filterwarnings("ignore:.*(srun|LeafSpec)")
def test_metrics_are_those_of_lightning_itself() -> None:
    torch.set_num_threads(1)  # as trainers do
    L.seed_everything(0, verbose=False)
    options = {"enable_progress_bar": False, "logger": False, "num_sanity_val_steps": 0}
    options |= {"enable_model_summary": False, "enable_checkpointing": False, "accelerator": "cpu"}
    fit = L.Trainer(max_epochs=3, log_every_n_steps=1, deterministic=True, **options)
    fit.fit(Net(0.05), datamodule=Data())
    lone = run_alone(trainer(Net, Data), {"lr": 0.05}, 3)
    assert lone.metrics[3] == {name: float(value) for name, value in fit.callback_metrics.items()}


@pytest.mark.parametrize("data", [Data, loaders])
def test_resumes_over_changes_of_values_and_callbacks(data: Any) -> None:
    hp = {
        "lr": MultiStep(0.05, [2], 0.1),
        "batch_size": Piecewise([8, 16], [3]),
        "weight": Piecewise([1.0, 2.0], [4]),
    }
    assert_resumes(trainer(Net, data, callbacks=callbacks), hp, 5)


def test_resumes_with_schedulers_clipping_and_half_precision() -> None:
    options = {"precision": "bf16-mixed", "gradient_clip_val": 0.5, "accumulate_grad_batches": 4}
    hp = {"lr": 0.01, "width": 4}
    assert_resumes(trainer(Scheduled, Data, max_epochs=5, **options), hp, 5)


def test_a_trial_that_a_callback_has_stopped_stays_as_it_is() -> None:
    stopping = L.callbacks.EarlyStopping("val_loss", patience=1, min_delta=100.0)
    kind = trainer(Net, Data, callbacks=[stopping])
    lone = run_alone(kind, {"lr": 0.05}, 4)
    assert lone.metrics[1] != lone.metrics[2] == lone.metrics[3] == lone.metrics[4]
    assert ("ended_at" in lone.metrics[1], lone.metrics[2]["ended_at"]) == (False, 2)
    assert_resumes(kind, {"lr": 0.05}, 4)


@pytest.mark.parametrize(
    ("scheduler", "lr"),
    [
        (partial(StepLR, step_size=2, gamma=0.3), MultiStep(0.05, [2, 4], gamma=0.3)),
        (partial(ExponentialLR, gamma=0.9), Exponential(0.05, gamma=0.9)),
        (partial(CosineAnnealingLR, T_max=5, eta_min=0.01), Cosine(0.05, 5, final=0.01)),
    ],
)
def test_sequences_train_as_the_schedulers_of_torch(scheduler: Any, lr: Any) -> None:
    class WithScheduler(Net):
        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            return [optimizer], [scheduler(optimizer)]

    expected = run_alone(trainer(WithScheduler, Data), {"lr": 0.05}, 5).metrics
    found = run_alone(trainer(Net, Data), {"lr": lr}, 5).metrics
    for step in range(1, 6):
        assert found[step] == pytest.approx(expected[step], rel=1e-4)


def test_notes_on_jobs_and_torch_are_left_out() -> None:
    class Outspoken(Net):
        def training_step(self, batch: Any, index: int) -> Any:
            warnings.warn("my own", stacklevel=1)
            return super().training_step(batch, index)

    with warnings.catch_warnings(record=True, action="always") as caught:
        run_alone(trainer(Outspoken, Data), {"lr": 0.1}, 1)
    shown = [str(warning.message) for warning in caught]
    assert "my own" in shown
    assert not [text for text in shown if "srun" in text or "LeafSpec" in text]


def test_the_best_epoch_loads_and_each_trial_has_a_log(tmp_path: Path) -> None:
    class Logging(Net):
        def on_train_epoch_end(self) -> None:
            self.logger.experiment.add_text("note", "an epoch")

    kind = trainer(Logging, Data, logger=CSVLogger(str(tmp_path / "logs"), name="digits"))
    place = {"name": "net", "storage": tmp_path / "store"}
    study = dt.create_study(kind, metric="val_loss", direction="minimize", **place)
    rates = [0.05, MultiStep(0.05, [2], gamma=0.1)]
    with single_thread(study.trainer) as client:
        tuner = dt.algos.Grid(dt.Space(lr=rates), max_steps=3)
        study.optimize(tuner, client=client, check=False, progress=False)
    number, step = study.chosen_state(None, "best")
    lone = run_alone(kind, study.trials[number].sequences, 3, states_at=[1, 2, 3])
    path = study.export(path=tmp_path / "best.ckpt", step="best")
    weights = study.export(number, tmp_path / "best.pt", step="best", only="module")
    net, last = Logging(lr=0.1), study.best_model().module
    net.load_state_dict(torch.load(weights))
    loaded = Logging.load_from_checkpoint(path)
    assert loaded.hparams.width == 8
    for module, at in ((net, step), (loaded, step), (study.best_model(step="best").module, step)):
        expected = lone.states[at]["objects"]["module"]["tensors"]
        assert all(torch.equal(expected[name], part) for name, part in module.state_dict().items())
    last_state = study.trial_state(study.best_trial.number)["objects"]["module"]["tensors"]
    assert all(torch.equal(last_state[name], part) for name, part in last.state_dict().items())
    study.close()
    logs = sorted((tmp_path / "logs" / "digits" / "net").glob("*/metrics.csv"))
    steps = [[line.split(",")[0] for line in log.read_text().splitlines()] for log in logs]
    assert steps == [["step", "1", "2", "3"], ["step", "3"]]


@pytest.mark.parametrize(
    ("scheduler", "sequence"),
    [
        (partial(StepLR, step_size=2, gamma=0.3), "MultiStep(0.05, [2, 4], gamma=0.3)"),
        (partial(MultiStepLR, milestones=[3], gamma=0.3), "MultiStep(0.05, [3], gamma=0.3)"),
        (partial(ExponentialLR, gamma=0.9), "Exponential(0.05, gamma=0.9)"),
        (partial(CosineAnnealingLR, T_max=5, eta_min=0.01), "Cosine(0.05, 5, final=0.01)"),
    ],
)
def test_a_sequence_beside_a_scheduler_is_refused(
    scheduler: Any, sequence: str, tmp_path: Path
) -> None:
    class WithScheduler(Net):
        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            return {"optimizer": optimizer, "lr_scheduler": scheduler(optimizer)}

    kind = trainer(WithScheduler, Data, max_epochs=6)
    space = dt.Space(lr=[0.05, Exponential(0.05, gamma=0.5)], width=[4, 8])
    random = torch.get_rng_state()
    message = f"or remove the scheduler, whose course is lr={sequence}"
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        dt.preview(space, max_steps=6, trainer=kind)
    study = dt.create_study(
        kind, name="net", storage=tmp_path, metric="val_loss", direction="minimize"
    )
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        study.optimize(dt.algos.Grid(space, max_steps=6))
    assert study.trials == []
    study.close()
    assert torch.equal(random, torch.get_rng_state())
    assert dt.preview(dt.Space(lr=[0.05, 0.1]), max_steps=6, trainer=kind).trials == 2


def test_no_trial_goes_beyond_max_epochs() -> None:
    with pytest.raises(TrainerError, match="all 2 epochs of max_epochs have been trained"):
        run_alone(trainer(Net, Data, max_epochs=2), {"lr": 0.05}, 3)


@pytest.mark.parametrize(
    ("module", "hp", "message"),
    [
        (Net, {"lr": 0.1, "depth": 2}, "nothing takes the hyper-parameter 'depth': Net takes lr"),
        (Net, {"width": 2}, "Net needs 'lr', which is neither a hyper-parameter nor in config"),
        (Net, {"lr": 0.1, "width": Piecewise([4, 8], [1])}, "Net reads it only where it is made"),
        (Scheduled, {"lr": MultiStep(0.1, [1], 0.1)}, "and a scheduler of configure_optimizers"),
        (Data, {}, "Data must make a lightning.LightningModule, got Data"),
    ],
)
def test_hyper_parameters_without_effect_are_refused(module: Any, hp: Any, message: str) -> None:
    with pytest.raises((ConfigurationError, TrainerError), match=message):
        run_alone(trainer(module, Data), hp, 2)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((Net(0.1),), {}, "module must be a class or a function, which each trial calls"),
        ((Net, Data()), {}, "data must be a class or a function, which each trial calls"),
        ((Net,), {"max_steps": 3}, "max_steps must not be given: how far a trial is trained"),
        ((Net,), {"epochs": 3}, "lightning.Trainer has no option 'epochs'; it has "),
        ((Net,), {"devices": 2}, "devices must not be given: the device of a worker"),
        ((Net,), {"logger": Counting}, "logger must be a CSVLogger or a TensorBoardLogger, got"),
    ],
)
def test_wrong_arguments_are_refused(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        dt.integrations.lightning.trainer(*arguments, **options)


# JAX, where another test has imported it, warns of the processes that the loader forks.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_persistent_workers_are_refused() -> None:
    def data() -> Any:
        return DataLoader(TensorDataset(torch.rand(8, 4), torch.rand(8)), 4,
                          num_workers=1, persistent_workers=True)  # fmt: skip

    with pytest.raises(ConfigurationError, match="persistent_workers must be False"):
        run_alone(trainer(Net, data), {"lr": 0.1}, 1)


def test_a_module_without_metrics_is_told_how_to_log() -> None:
    class Silent(Net):
        def training_step(self, batch: Any, index: int) -> Any:
            return ((self.net(batch[0])[:, 0] - batch[1]) ** 2).mean()

        def validation_step(self, batch: Any, index: int) -> None:
            pass

    with pytest.raises(TrainerError, match="Silent must log its metrics, as in self"):
        run_alone(trainer(Silent, Data), {"lr": 0.1}, 1)


def test_options_and_code_are_parts_of_the_fingerprint() -> None:
    def digest(*given: Any, **options: Any) -> str:
        return fingerprint(trainer(*given, **options), {}).digest

    stopping = L.callbacks.EarlyStopping
    digests = [
        digest(Net, Data),
        digest(Scheduled, Data),
        digest(Net, loaders),
        digest(Net, Data, precision="bf16-mixed"),
        digest(Net, Data, callbacks=[stopping("val_loss", patience=1)]),
        digest(Net, Data, callbacks=[stopping("val_loss", patience=2)]),
    ]
    assert len({*digests}) == len(digests)
    assert digest(Net, Data, callbacks=[stopping("val_loss", patience=2)]) == digests[-1]


def with_files(folder: Path) -> Any:
    """Return a trainer with objects that hold a file system, which notes process and thread."""
    saving = L.callbacks.ModelCheckpoint(monitor="val_loss")
    return trainer(Net, Data, callbacks=[saving, Counting()], logger=CSVLogger(str(folder)))


def test_options_with_files_are_known_in_each_process(tmp_path: Path) -> None:
    taken = fingerprint(with_files(tmp_path), {})
    assert taken.gaps.keys() == {"data"}
    assert taken.parts.keys() > {"class trainer(Net)", "class Net", "class Data", "class Counting"}
    with ThreadPoolExecutor() as pool:
        assert pool.submit(fingerprint, with_files(tmp_path), {}).result() == taken
        other = pool.submit(with_files, tmp_path).result()
    assert fingerprint(other, {}) == taken


@pytest.mark.process
def test_options_with_files_pass_the_resume_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork_for_resume_checks(monkeypatch)
    report = check_resume(with_files(tmp_path), {"lr": MultiStep(0.05, [2], 0.1)}, total=4)
    assert report.ok, str(report)
