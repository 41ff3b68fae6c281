"""Training functions that use Accelerate resume exactly."""

from __future__ import annotations

from typing import Any

import pytest

import dasktune as dt
from dasktune.errors import StateError
from dasktune.sequences import MultiStep
from dasktune.trainer.lifecycle import run_alone
from tests.integrations.exact import assert_resumes

torch = pytest.importorskip("torch")
accelerate = pytest.importorskip("accelerate")

pytestmark = [pytest.mark.framework("accelerate"), pytest.mark.filterwarnings("ignore")]


def train(run: Any) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    x = torch.rand(64, 4, generator=torch.Generator().manual_seed(1))
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=run["lr"], momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    loader = run.loader((x, x.sum(1)), batch_size=8)
    run.track(model, optimizer)
    for _ in run.steps():
        model.train()
        for inputs, target in loader.epoch_batches():
            optimizer.zero_grad()
            loss = ((model(inputs)[:, 0] - target) ** 2).mean()
            accelerator.backward(loss)
            optimizer.step()
        run.report(loss=loss)


def test_a_function_with_prepared_parts_resumes_exactly() -> None:
    assert_resumes(train, {"lr": MultiStep(0.05, [2], 0.1)}, 4)


def prepared() -> Any:
    loader = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=4, shuffle=True)
    return accelerate.Accelerator(cpu=True).prepare(loader)


def held(run: Any) -> None:
    loader = prepared()
    for _ in run.steps():
        run.report(loss=sum(float(batch.sum()) for batch in loader))


def tracked(run: Any) -> None:
    run.track(loader=prepared())
    for _ in run.steps():
        run.report(loss=0.0)


class Prepared(dt.TorchTrainer):
    def build(self, hp: Any) -> None:
        self.loader = prepared()

    def train(self) -> None:
        self.total = sum(float(batch.sum()) for batch in self.loader)

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.total}


@pytest.mark.parametrize("trainer", [held, tracked, Prepared])
def test_a_prepared_loader_is_refused_with_the_line_to_write(trainer: Any) -> None:
    with pytest.raises(StateError, match=r"loader.*DataLoaderShard.*leave .* out of accelerator"):
        run_alone(trainer, {"lr": 0.1}, 1, states_at=[1])
