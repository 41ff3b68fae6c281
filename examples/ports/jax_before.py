"""A network in JAX and optax on the digits."""

import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

optimizer = optax.adam(0.01)


def loss(params, x, y):
    logits = jnp.tanh(x @ params["in"]) @ params["out"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def update(params, opt_state, x, y):
    updates, opt_state = optimizer.update(jax.grad(loss)(params, x, y), opt_state)
    return optax.apply_updates(params, updates), opt_state


def main():
    x, y = load_digits(return_X_y=True)
    x, y = jnp.asarray(x / 16, jnp.float32), jnp.asarray(y)
    first, second = jax.random.split(jax.random.key(0))
    params = {
        "in": jax.random.normal(first, (64, 32)) / 8,
        "out": jax.random.normal(second, (32, 10)) / 6,
    }
    opt_state = optimizer.init(params)
    step = jax.jit(update)
    for epoch in range(6):
        params, opt_state = step(params, opt_state, x[:1500], y[:1500])
        print(epoch, loss(params, x[1500:], y[1500:]))


if __name__ == "__main__":
    main()
