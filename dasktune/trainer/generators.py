"""Random generators: the global ones and those a trainer holds, as storable states."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

_SPAWNED = "children spawned"
"""Name, in the state of a generator of NumPy, of how many others were spawned from it."""


def seed_global(seed: int, device: str = "cpu") -> None:
    """Seed the global generators of Python, NumPy and, if it is loaded, torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)
        if is_cuda(device):
            torch.cuda.manual_seed(seed)


def global_states(device: str = "cpu") -> dict[str, Any]:
    """Return the states of the global generators by name.

    Parameters
    ----------
    device
        The device of the training; a CUDA device has a generator of its own. A trainer may use
        the device without torch, and then torch may not know it.
    """
    states = {"python": generator_state(random), "numpy": np.random.get_state(legacy=False)}
    torch = sys.modules.get("torch")
    if torch is not None:
        states["torch"] = torch.get_rng_state()
        if is_cuda(device) and torch.cuda.is_available():
            states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_global(states: Mapping[str, Any], device: str = "cpu") -> None:
    """Restore the global generators from the result of `global_states`.

    From a state of another kind of device the common generators are restored.
    """
    restore_generator(random, states["python"])
    np.random.set_state(states["numpy"])
    torch = sys.modules.get("torch")
    if torch is not None and "torch" in states:
        torch.set_rng_state(states["torch"])
        if is_cuda(device) and "cuda" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state(states["cuda"], device)


def is_generator(value: object) -> bool:
    """Return whether a value is a random generator of Python, NumPy or torch."""
    kinds = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
    torch = sys.modules.get("torch")
    return isinstance(value, kinds) or (torch is not None and isinstance(value, torch.Generator))


def generator_state(generator: Any) -> Any:
    """Return a generator's state as numbers, arrays and dicts of them.

    The `random` module itself stands for Python's global generator.

    Examples
    --------
    >>> generator = np.random.default_rng(1)
    >>> state = generator_state(generator)
    >>> first = generator.random()
    >>> restore_generator(generator, state)
    >>> generator.random() == first
    True
    """
    if generator is random or isinstance(generator, random.Random):
        version, numbers, gauss = generator.getstate()
        # An array takes a tenth of the space and time of 625 integers.
        return {"version": version, "numbers": np.array(numbers, np.uint32), "gauss": gauss}
    if isinstance(generator, np.random.Generator):
        return generator_state(generator.bit_generator)
    if isinstance(generator, np.random.BitGenerator):
        spawned = getattr(generator.seed_seq, "n_children_spawned", 0)
        return {**generator.state, _SPAWNED: spawned} if spawned else generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.get_state()


def restore_generator(generator: Any, state: Any) -> None:
    """Restore a generator from the result of `generator_state`."""
    if generator is random or isinstance(generator, random.Random):
        generator.setstate((state["version"], tuple(state["numbers"].tolist()), state["gauss"]))
    elif isinstance(generator, np.random.Generator):
        restore_generator(generator.bit_generator, state)
    elif isinstance(generator, np.random.BitGenerator):
        seeds: Any = generator.seed_seq
        missing = state.get(_SPAWNED, 0) - getattr(seeds, "n_children_spawned", 0)
        if missing > 0:
            seeds.spawn(missing)  # so that the next one is another
        generator.state = {name: value for name, value in state.items() if name != _SPAWNED}
    else:
        generator.set_state(state)


def is_cuda(device: str) -> bool:
    """Return whether the device is a CUDA device."""
    return str(device).partition(":")[0] == "cuda"
