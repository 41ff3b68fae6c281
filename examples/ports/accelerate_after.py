"""A network on the digits, trained by a loop with Accelerate and tuned by dasktune."""

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dasktune as dt


def main(run):
    x, y = load_digits(return_X_y=True)
    x, y = torch.as_tensor(x / 16, dtype=torch.float32), torch.as_tensor(y)
    loader = DataLoader(TensorDataset(x[300:], y[300:]), 64, shuffle=True)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=run["lr"], momentum=0.9)
    accelerator = Accelerator()
    model, optimizer, loader = run.track(*accelerator.prepare(model, optimizer, loader))
    for _ in run.steps():
        for inputs, labels in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(inputs), labels))
            optimizer.step()
        accuracy = (model(x[:300]).argmax(1) == y[:300]).float().mean()
        run.report(accuracy=accuracy)


study = dt.create_study(main, name="digits", metric="accuracy", direction="maximize")
space = dt.Space(lr=[0.1, dt.sequences.MultiStep(0.1, milestones=[4], gamma=0.1)])
tuner = dt.algos.Grid(space, max_steps=6)
