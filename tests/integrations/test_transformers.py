"""The trainer of Hugging Face's trainer: exact, as it trains by itself, and clear on mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dasktune as dt
from dasktune.errors import ConfigurationError, TrainerError
from dasktune.sequences import MultiStep, Piecewise
from dasktune.trainer.lifecycle import run_alone
from tests.integrations.exact import assert_merges, assert_resumes

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

pytestmark = [
    pytest.mark.framework("transformers", "accelerate"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a Hugging Face trainer makes its output folder


def tiny(
    learning_rate: float = 0.01, weight_decay: float = 0.1, epochs: int = 5, **options: Any
) -> Any:
    config = transformers.GPT2Config(
        vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    tokens = torch.randint(0, 16, (24, 8), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    args = transformers.TrainingArguments(
        "out", learning_rate=learning_rate, weight_decay=weight_decay, num_train_epochs=epochs,
        per_device_train_batch_size=4, use_cpu=True, report_to="none", disable_tqdm=True,
        logging_steps=4, **options,
    )  # fmt: skip
    return transformers.Trainer(
        transformers.GPT2LMHeadModel(config), args, train_dataset=data[:16], eval_dataset=data[16:]
    )


def stopped(learning_rate: float) -> Any:
    made = tiny(learning_rate, metric_for_best_model="eval_loss", eval_strategy="epoch")
    made.add_callback(transformers.EarlyStoppingCallback(1, early_stopping_threshold=10.0))
    return made


def constant(learning_rate: float, weight_decay: float = 0.1) -> Any:
    return tiny(learning_rate, weight_decay, lr_scheduler_type="constant")


def trainer(make: Any) -> Any:
    return dt.integrations.transformers.trainer(make)


def test_metrics_are_those_of_hugging_face_itself() -> None:
    torch.set_num_threads(1)  # as trainers do
    lone = run_alone(trainer(lambda learning_rate: tiny(learning_rate)), {"learning_rate": 0.01}, 5)
    torch.manual_seed(0)
    made = tiny(0.01, eval_strategy="epoch")
    made.train()
    losses = [entry["eval_loss"] for entry in made.state.log_history if "eval_loss" in entry]
    assert [lone.metrics[step]["eval_loss"] for step in range(1, 6)] == losses


@pytest.mark.parametrize("make", [tiny, constant])
def test_resumes_over_changes_of_values(make: Any) -> None:
    kind = trainer(make)
    hp = {"learning_rate": MultiStep(0.01, [3], 0.5), "weight_decay": Piecewise([0.1, 0.0], [2])}
    assert_resumes(kind, hp, 5)


def test_a_trial_that_a_callback_has_stopped_stays_as_it_is() -> None:
    kind = trainer(stopped)
    lone = run_alone(kind, {"learning_rate": 0.01}, 4)
    assert lone.metrics[1] != lone.metrics[2] == lone.metrics[4]
    assert_resumes(kind, {"learning_rate": 0.01}, 4)


def test_merged_trials_equal_lone_ones(tmp_path: Path) -> None:
    space = dt.Space(learning_rate=[0.01, MultiStep(0.01, [3], 0.5)], weight_decay=[0.1])
    study = dt.create_study(
        trainer(constant), name="tiny", storage=str(tmp_path / "runs"), metric="eval_loss",
        direction="minimize",
    )  # fmt: skip
    assert_merges(study, dt.algos.Grid(space, max_steps=4), (8, 5))


@pytest.mark.parametrize(
    ("make", "hp", "message"),
    [
        (constant, {"learning_rate": 0.1, "depth": 2}, "nothing takes the hyper-parameter 'depth'"),
        (lambda: 3, {}, "must return a transformers.Trainer, got int"),
        (tiny, {"epochs": Piecewise([5, 6], [1])}, "tiny is called only once; keep it constant"),
        (lambda: tiny(epochs=1), {}, "all 1 epochs of num_train_epochs have been trained"),
    ],
)
def test_mistakes_are_refused(make: Any, hp: Any, message: str) -> None:
    if make is tiny:
        make = _tiny_epochs
        message = message.replace("tiny", "_tiny_epochs")
    with pytest.raises((ConfigurationError, TrainerError), match=message):
        run_alone(trainer(make), hp, 2)


def _tiny_epochs(epochs: int) -> Any:
    return tiny(epochs=epochs)
