"""Training functions that use Accelerate resume exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dasktune as dt
from dasktune.errors import ConfigurationError
from dasktune.sequences import MultiStep
from dasktune.trainer.lifecycle import run_alone
from tests.forked import fork_for_resume_checks
from tests.integrations.exact import assert_merges, assert_resumes

torch = pytest.importorskip("torch")
accelerate = pytest.importorskip("accelerate")

pytestmark = [pytest.mark.framework("accelerate"), pytest.mark.filterwarnings("ignore")]


def train(run: Any) -> None:
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=run["lr"], momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, rows(), scheduler)
    run.track(model, optimizer, loader, scheduler)
    for _ in run.steps():
        model.train()
        for (inputs,) in loader:
            with accelerator.accumulate(model):
                loss = ((model(inputs)[:, 0] - inputs.sum(1)) ** 2).mean()
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        run.report(loss=loss)


def rows(generator: Any = None) -> Any:
    x = torch.rand(64, 4, generator=torch.Generator().manual_seed(1))
    data = torch.utils.data.TensorDataset(x)
    return torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, generator=generator)


def test_a_function_with_prepared_parts_resumes_exactly() -> None:
    assert_resumes(train, {"lr": 0.05}, 4)


def test_merged_trials_equal_lone_ones(tmp_path: Path) -> None:
    space = dt.Space(lr=[0.05, MultiStep(0.05, [3], 0.5)])
    study = dt.create_study(
        changing, name="changing", storage=str(tmp_path / "runs"), metric="loss",
        direction="minimize",
    )  # fmt: skip
    assert_merges(study, dt.algos.Grid(space, max_steps=4), (8, 5))


def changing(run: Any) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=run["lr"], momentum=0.9)
    generator = torch.Generator().manual_seed(5)
    model, optimizer, loader = accelerator.prepare(model, optimizer, rows(generator))
    run.track(model, optimizer, loader)
    for _ in run.steps():
        for (inputs,) in loader:
            optimizer.zero_grad()
            loss = ((model(inputs)[:, 0] - inputs.sum(1)) ** 2).mean()
            accelerator.backward(loss)
            optimizer.step()
        run.report(loss=loss)


def test_the_check_passes_and_looks_into_a_prepared_loader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fork_for_resume_checks(monkeypatch)
    report = dt.check_resume(changing, {"lr": 0.05}, split=1, total=3)
    assert report.ok, report.differences


def seeded(run: Any) -> None:
    configuration = accelerate.utils.DataLoaderConfiguration(use_seedable_sampler=True)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=configuration)
    loader = accelerator.prepare(rows())
    run.track(loader)
    for _ in run.steps():
        run.report(loss=sum(i * float(x.sum()) for i, (x,) in enumerate(loader)))


def test_a_sampler_that_counts_epochs_goes_on() -> None:
    assert_resumes(seeded, {"lr": 0.05}, 3)


def untracked(run: Any) -> None:
    loader = accelerate.Accelerator(cpu=True).prepare(rows())
    for _ in run.steps():
        run.report(loss=sum(float(batch.sum()) for (batch,) in loader))


def test_a_prepared_loader_that_is_not_tracked_is_refused() -> None:
    message = r"loader, a DataLoaderShard, has a state that would be lost: call run.track\(loader\)"
    with pytest.raises(ConfigurationError, match=message):
        run_alone(untracked, {"lr": 0.1}, 1)


class Prepared(dt.TorchTrainer):
    def build(self, hp: Any) -> None:
        generator = torch.Generator().manual_seed(5)
        self.loader = accelerate.Accelerator(cpu=True).prepare(rows(generator))

    def train(self) -> None:
        self.total = sum(i * float(batch.sum()) for i, (batch,) in enumerate(self.loader))

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.total}


def test_a_class_that_holds_a_prepared_loader_resumes_exactly() -> None:
    assert_resumes(Prepared, {"lr": 0.1}, 3)
