"""A network on the digits, tuned by Optuna."""

import optuna
import torch
from sklearn.datasets import load_digits
from torch import nn


def objective(trial):
    lr = trial.suggest_float("lr", 1e-2, 1.0, log=True)
    width = trial.suggest_int("width", 16, 64)
    x, y = load_digits(return_X_y=True)
    x, y = torch.as_tensor(x / 16, dtype=torch.float32), torch.as_tensor(y)
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for epoch in range(4):
        for batch in torch.randperm(1500).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
        accuracy = (model(x[1500:]).argmax(1) == y[1500:]).float().mean().item()
        trial.report(accuracy, epoch)
        if trial.should_prune():
            raise optuna.TrialPruned()
    return accuracy


study = optuna.create_study(study_name="digits", direction="maximize")
study.optimize(objective, n_trials=4)
print(study.best_value, study.best_params)
