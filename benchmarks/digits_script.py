"""An Optuna script as students write it, with small networks on digits, and its form for dasktune.

The objectives differ as the guide for users of Optuna tells: the loop, the reports, and `track`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 12
TRIALS = 20
TESTS = 400


def load() -> tuple[TensorDataset, TensorDataset]:
    """Return the images for training and for tests."""
    x, y = load_digits(return_X_y=True)
    x = torch.as_tensor(x / 16, dtype=torch.float32)
    y = torch.as_tensor(y)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[TESTS:], order[:TESTS]
    return TensorDataset(x[train], y[train]), TensorDataset(x[test], y[test])


def define_model(trial: Any) -> nn.Sequential:
    """Return a network whose layers the trial suggests."""
    layers: list[nn.Module] = []
    width = 64
    for i in range(trial.suggest_int("n_layers", 1, 3)):
        units = trial.suggest_int(f"units_{i}", 16, 128)
        dropout = trial.suggest_float(f"dropout_{i}", 0.1, 0.5)
        layers += [nn.Linear(width, units), nn.ReLU(), nn.Dropout(dropout)]
        width = units
    return nn.Sequential(*layers, nn.Linear(width, 10))


def train_epoch(model: nn.Module, optimizer: Any, batches: DataLoader[Any]) -> None:
    """Train on each image once."""
    model.train()
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def accuracy_of(model: nn.Module, tests: DataLoader[Any]) -> float:
    """Return the share of the images for tests that are told right."""
    model.eval()
    with torch.no_grad():
        return sum((model(x).argmax(1) == y).sum().item() for x, y in tests) / TESTS


def optuna_objective(trial: Any) -> float:
    """Train a trial of Optuna."""
    import optuna

    model = define_model(trial)
    optimizer = torch.optim.Adam(
        model.parameters(), lr=trial.suggest_float("lr", 1e-4, 1e-1, log=True)
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    train, test = load()
    batches, tests = DataLoader(train, 32, shuffle=True), DataLoader(test, TESTS)
    accuracy = 0.0
    for epoch in range(EPOCHS):
        train_epoch(model, optimizer, batches)
        scheduler.step()
        accuracy = accuracy_of(model, tests)
        trial.report(accuracy, epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    return accuracy


def objective(trial: Any) -> None:
    """Train a trial of dasktune."""
    model = define_model(trial)
    optimizer = torch.optim.Adam(
        model.parameters(), lr=trial.suggest_float("lr", 1e-4, 1e-1, log=True)
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    train, test = load()
    batches, tests = DataLoader(train, 32, shuffle=True), DataLoader(test, TESTS)
    trial.track(model, optimizer, scheduler)
    for _ in trial.steps():
        train_epoch(model, optimizer, batches)
        scheduler.step()
        trial.report(accuracy=accuracy_of(model, tests))


def run_with_optuna(folder: Path) -> int:
    """Run Optuna in this process, with its sampler and its median pruner; return the trials."""
    import optuna

    torch.set_num_threads(1)
    study = optuna.create_study(
        storage=f"sqlite:///{folder}/digits.db",
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=1),
        pruner=optuna.pruners.MedianPruner(),
    )
    study.optimize(optuna_objective, n_trials=TRIALS)
    return len(study.trials)


def run_with_dasktune(workers: int, folder: Path) -> int:
    """Run ASHA on workers of this host, as a first study; return the trials."""
    import dasktune as dt

    study = dt.create_study(
        objective, name="digits", storage=folder, metric="accuracy", direction="maximize"
    )
    study.optimize(dt.algos.ASHA(objective, trials=TRIALS, max_steps=EPOCHS), workers=workers)
    return len(study.trials)
