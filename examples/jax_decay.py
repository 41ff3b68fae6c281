"""Tune a small network in JAX and optax; a step is one pass over the digits.

Run it with ``dasktune run examples/jax_decay.py``. Needs
``pip install 'dasktune[jax,examples]' optax``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

import dasktune as dt
from dasktune.integrations.jax import JaxTrainer
from dasktune.sequences import Constant, MultiStep

OPTIMIZER = optax.inject_hyperparams(optax.adam)(learning_rate=0.0)


def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the mean cross entropy."""
    logits = jnp.tanh(x @ params["in"]) @ params["out"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def epoch(params: Any, opt_state: Any, key: jax.Array, x: jax.Array, y: jax.Array) -> Any:
    """Return the parameters and the optimizer after a pass over the data in random order."""
    order = jax.random.permutation(key, len(x))[: len(x) // 64 * 64].reshape(-1, 64)

    def step(carry: Any, batch: jax.Array) -> Any:
        params, opt_state = carry
        gradients = jax.grad(loss)(params, x[batch], y[batch])
        updates, opt_state = OPTIMIZER.update(gradients, opt_state)
        return (optax.apply_updates(params, updates), opt_state), None

    return jax.lax.scan(step, (params, opt_state), order)[0]


class Digits(JaxTrainer):
    """Two layers on the digits."""

    def build(self, hp: Mapping[str, Any]) -> None:
        """Make data, parameters and optimizer."""
        x, y = load_digits(return_X_y=True)
        self.x, self.y = jnp.asarray(x / 16, jnp.float32), jnp.asarray(y)
        self.key, first, second = jax.random.split(jax.random.key(self.seed), 3)
        self.params = {
            "in": jax.random.normal(first, (64, 32)) / 8,
            "out": jax.random.normal(second, (32, 10)) / 6,
        }
        self.opt_state = OPTIMIZER.init(self.params)
        self.epoch = jax.jit(epoch)  # here, since a compiled function cannot be sent to workers

    def setup(self, hp: Mapping[str, Any]) -> None:
        """Take over the learning rate."""
        self.opt_state.hyperparams["learning_rate"] = jnp.asarray(hp["lr"], jnp.float32)

    def train(self) -> None:
        """Train a pass over the first 1,500 images."""
        self.key, key = jax.random.split(self.key)
        self.params, self.opt_state = self.epoch(
            self.params, self.opt_state, key, self.x[:1500], self.y[:1500]
        )

    def evaluate(self) -> dict[str, float]:
        """Return the loss on the other images."""
        return {"loss": float(loss(self.params, self.x[1500:], self.y[1500:]))}


def study() -> dt.Study:
    """Return the study, continued if it was begun before."""
    return dt.create_study(
        Digits,
        name="jax-decay",
        storage="runs/jax-decay",
        metric="loss",
        direction="minimize",
        load_if_exists=True,
    )


def tuner() -> dt.algos.Grid:
    """Return schedules that begin alike."""
    space = dt.Space(
        lr=[
            Constant(0.01),
            MultiStep(0.01, milestones=[4], gamma=0.1),
            MultiStep(0.01, milestones=[6], gamma=0.1),
        ]
    )
    return dt.algos.Grid(space, max_steps=8)
