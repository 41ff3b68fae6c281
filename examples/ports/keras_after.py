"""A network on the digits, trained with Keras and tuned by dasktune."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
from sklearn.datasets import load_digits

import dasktune as dt

x, y = load_digits(return_X_y=True)
x = x / 16


def make_model(lr):
    layers = [
        keras.Input((64,)),
        keras.layers.Dense(32, "relu"),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(10, "softmax"),
    ]
    model = keras.Sequential(layers)
    optimizer = keras.optimizers.SGD(lr, momentum=0.9)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def make(lr):
    data = {"x": x[300:], "y": y[300:], "batch_size": 64, "validation_data": (x[:300], y[:300])}
    return make_model(lr), data


train = dt.integrations.keras.trainer(make)
study = dt.create_study(train, name="digits", metric="val_accuracy", direction="maximize")
space = dt.Space(lr=[0.1, dt.sequences.MultiStep(0.1, milestones=[4], gamma=0.1)])
tuner = dt.algos.Grid(space, max_steps=6)
