"""A network on the digits, tuned by dasktune."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import dasktune as dt


def objective(trial):
    lr = trial.suggest_float("lr", 1e-2, 1.0, log=True)
    width = trial.suggest_int("width", 16, 64)
    x, y = load_digits(return_X_y=True)
    x, y = torch.as_tensor(x / 16, dtype=torch.float32), torch.as_tensor(y)
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    trial.track(model, optimizer)
    for _ in trial.steps():
        for batch in torch.randperm(1500).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
        accuracy = (model(x[1500:]).argmax(1) == y[1500:]).float().mean().item()
        trial.report(accuracy=accuracy)


study = dt.create_study(objective, name="digits", metric="accuracy", direction="maximize")
tuner = dt.algos.SHA(objective, trials=4, max_steps=4)
