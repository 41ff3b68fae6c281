"""The same, tuned by dasktune: Lightning with scheduler, callbacks, logger and best checkpoint."""

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import dasktune as dt


class Net(L.LightningModule):
    def __init__(self, lr=0.1, width=32):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        self.log("val_loss", nn.functional.cross_entropy(self.net(x), y))

    def predict_step(self, batch, index):
        return self.net(batch[0]).argmax(1)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.3)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


class Digits(L.LightningDataModule):
    def __init__(self, batch_size=64):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage):
        x, y = load_digits(return_X_y=True)
        data = TensorDataset(torch.as_tensor(x / 16, dtype=torch.float32), torch.as_tensor(y))
        parts = random_split(data, [1400, 300, 97], torch.Generator().manual_seed(0))
        self.train, self.val, self.test = parts

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=300)

    def predict_dataloader(self):
        return DataLoader(self.test, batch_size=97)


checkpoint = ModelCheckpoint(monitor="val_loss")
trainer = dt.integrations.lightning.trainer(
    Net,
    Digits,
    max_epochs=8,
    gradient_clip_val=1.0,
    callbacks=[EarlyStopping("val_loss", patience=2), checkpoint],
    logger=CSVLogger("logs", name="digits"),
)
study = dt.create_study(trainer, name="lr", metric="val_loss", load_if_exists=True)
tuner = dt.algos.Grid(dt.Space(lr=[0.01, 0.1, 0.3]), max_steps=8)

if __name__ == "__main__":
    study.optimize(tuner)
    print("best loss:", study.best_trial)
    model = Net.load_from_checkpoint(study.export(path="best.ckpt", step="best"))
    print(L.Trainer().predict(model, datamodule=Digits()))
