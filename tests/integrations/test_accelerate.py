"""Training functions that use Accelerate resume exactly."""

from __future__ import annotations

from typing import Any

import pytest

from dasktune.sequences import MultiStep
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
