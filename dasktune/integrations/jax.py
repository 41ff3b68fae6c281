"""JAX and Flax: trees of arrays as the state of a trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from dasktune.errors import ConfigurationError, StateError
from dasktune.integrations.installed import framework
from dasktune.trainer.base import Trainer
from dasktune.types import Value


class JaxTrainer(Trainer):
    """A trainer of which the user writes `build`, `setup`, `train` and `evaluate` only.

    The attributes that `state_names` names are saved and loaded: trees of arrays such as the
    parameters, the state of an optax optimizer, and keys of random numbers, also modules of Flax's
    NNX. `build` makes them with the shapes that they keep. Functions compiled by ``jax.jit``
    take them as arguments and return the new ones; they must not hold any themselves.

    On the CPU a training that goes on from a state is exact. On GPUs it was not tried.

    Attributes
    ----------
    state_names
        The names of the attributes that the next step depends on.

    Examples
    --------
    A step of gradient descent, whose rate may change between steps::

        class Line(dt.integrations.jax.JaxTrainer):
            def build(self, hp):
                self.params = {"w": jnp.zeros(3)}
                self.opt_state = optimizer.init(self.params)
                self.key = jax.random.key(self.seed)
    """

    state_names: ClassVar[tuple[str, ...]] = ("params", "opt_state", "key")

    def state_dict(self) -> dict[str, Any]:
        """Return the leaves of each tree, in JAX's order."""
        return {name: _leaves(self._tree(name)) for name in self.state_names}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put the leaves into the trees that `build` has made.

        Raises
        ------
        StateError
            If a tree has other leaves than those of the state.
        """
        for name in self.state_names:
            setattr(self, name, _filled(self._tree(name), state.get(name, ()), name))

    def _tree(self, name: str) -> Any:
        if not hasattr(self, name):
            raise ConfigurationError(
                f"{type(self).__name__}.build must set self.{name}, or state_names must not name "
                f"it; it names {', '.join(self.state_names)}"
            )
        return getattr(self, name)


class Trees:
    """Trees of arrays as attributes, which `Run.track` saves in a training function.

    A hyper-parameter with the name of an option of ``optax.inject_hyperparams`` in one of the
    trees, such as ``learning_rate``, is set there, when the trees are tracked and when it changes.

    Parameters
    ----------
    trees
        The trees by name, as a trainer's `build` would make them.

    Examples
    --------
    Before and in the loop of a training function::

        now = run.track(dt.integrations.jax.Trees(params=params, opt_state=opt_state))
        for _ in run.steps():
            now.params, now.opt_state = update(now.params, now.opt_state)
    """

    def __init__(self, **trees: Any) -> None:
        vars(self).update(trees)

    def state_dict(self) -> dict[str, Any]:
        """Return the leaves of each tree, in JAX's order."""
        return {name: _leaves(tree) for name, tree in vars(self).items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put the leaves into the trees.

        Raises
        ------
        StateError
            If a tree has other leaves than those of the state.
        """
        for name, tree in vars(self).items():
            setattr(self, name, _filled(tree, state.get(name, ()), name))

    def set_options(self, values: Mapping[str, Value]) -> set[str]:
        """Set options of injected optimizers; return the names of those that there are.

        Raises
        ------
        ConfigurationError
            If a schedule of optax sets the option, too.
        """
        jax, taken = framework("jax", extra="jax"), set()
        for part in jax.tree.leaves(vars(self), is_leaf=_has_options):
            for name in values.keys() & (part.hyperparams if _has_options(part) else {}).keys():
                if name in getattr(part, "hyperparams_states", ()):
                    raise ConfigurationError(
                        f"a schedule of optax sets {name!r}, too: give inject_hyperparams a number"
                    )
                kind = part.hyperparams[name].dtype
                part.hyperparams[name] = jax.numpy.asarray(values[name], kind)
                taken.add(name)
        return taken


def _has_options(part: Any) -> bool:
    return isinstance(getattr(part, "hyperparams", None), dict)


def _leaves(tree: Any) -> list[Any]:
    """Return the leaves of a tree in a form that a state can hold."""
    jax = framework("jax", extra="jax")
    return [_stored(leaf, jax) for leaf in jax.tree.leaves(tree)]


def _filled(tree: Any, saved: Sequence[Any], name: str) -> Any:
    """Return a tree of the same structure with saved leaves."""
    jax = framework("jax", extra="jax")
    own, structure = jax.tree.flatten(tree)
    if len(saved) != len(own):
        raise StateError(
            f"state[{name!r}]", f"the tree must have {len(saved)} leaves, got {len(own)}"
        )
    leaves = [
        _loaded(leaf, like, f"state[{name!r}][{index}]", jax)
        for index, (leaf, like) in enumerate(zip(saved, own, strict=True))
    ]
    return jax.tree.unflatten(structure, leaves)


def _stored(leaf: Any, jax: Any) -> Any:
    """Return a leaf as a number or an array that a state can hold."""
    if isinstance(leaf, (bool, int, float, complex)):
        return leaf
    if _is_key(leaf, jax):
        leaf = jax.random.key_data(leaf)
    array = np.array(leaf)
    # NumPy has no bfloat16 of its own.
    return array.reshape(-1).view(np.uint8) if array.dtype.kind == "V" else array


def _loaded(saved: Any, like: Any, path: str, jax: Any) -> Any:
    """Return a saved leaf with the form of the one that `build` has made."""
    if isinstance(like, (bool, int, float, complex)):
        return saved
    if _is_key(like, jax):
        saved = jax.random.wrap_key_data(np.asarray(saved), impl=jax.random.key_impl(like))
    else:
        plain = np.asarray(saved)
        form = np.asarray(like)
        if form.dtype.kind == "V" and plain.nbytes == form.nbytes:
            plain = plain.view(form.dtype).reshape(form.shape)
        saved = plain if isinstance(like, np.ndarray) else jax.numpy.asarray(plain)
    if saved.shape != like.shape or saved.dtype != like.dtype:
        raise StateError(
            path,
            f"the tree must have an array of {saved.dtype} {saved.shape}, got {like.dtype} "
            f"{like.shape}",
        )
    return saved


def _is_key(leaf: Any, jax: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
