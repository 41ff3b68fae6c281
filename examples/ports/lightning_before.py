"""A network on the digits, trained by Lightning."""

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(L.LightningModule):
    def __init__(self, lr=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch, index):
        x, y = batch
        self.log("val_accuracy", (self.net(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)


class Digits(L.LightningDataModule):
    def setup(self, stage):
        x, y = load_digits(return_X_y=True)
        self.x, self.y = torch.as_tensor(x / 16, dtype=torch.float32), torch.as_tensor(y)

    def train_dataloader(self):
        return DataLoader(TensorDataset(self.x[300:], self.y[300:]), 64, shuffle=True)

    def val_dataloader(self):
        return DataLoader(TensorDataset(self.x[:300], self.y[:300]), 300)


if __name__ == "__main__":
    trainer = L.Trainer(max_epochs=6)
    trainer.fit(Net(), Digits())
