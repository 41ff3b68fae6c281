"""A network on the digits, trained with Keras."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
from sklearn.datasets import load_digits

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


model = make_model(0.1)
model.fit(x[300:], y[300:], batch_size=64, epochs=6, validation_data=(x[:300], y[:300]))
