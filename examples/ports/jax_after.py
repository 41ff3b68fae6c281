"""A network in JAX and optax on the digits, tuned by dasktune."""

import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

import dasktune as dt

optimizer = optax.inject_hyperparams(optax.adam)(0.01)


def loss(params, x, y):
    logits = jnp.tanh(x @ params["in"]) @ params["out"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def update(params, opt_state, x, y):
    updates, opt_state = optimizer.update(jax.grad(loss)(params, x, y), opt_state)
    return optax.apply_updates(params, updates), opt_state


def main(run):
    x, y = load_digits(return_X_y=True)
    x, y = jnp.asarray(x / 16, jnp.float32), jnp.asarray(y)
    first, second = jax.random.split(jax.random.key(0))
    params = {
        "in": jax.random.normal(first, (64, 32)) / 8,
        "out": jax.random.normal(second, (32, 10)) / 6,
    }
    now = run.track(dt.integrations.jax.Trees(params=params, opt_state=optimizer.init(params)))
    step = jax.jit(update)
    for _ in run.steps():
        now.params, now.opt_state = step(now.params, now.opt_state, x[:1500], y[:1500])
        run.report(loss=loss(now.params, x[1500:], y[1500:]))


study = dt.create_study(main, name="digits", metric="loss", direction="minimize")
space = dt.Space(learning_rate=[0.01, dt.sequences.MultiStep(0.01, milestones=[4], gamma=0.1)])
tuner = dt.algos.Grid(space, max_steps=6)
