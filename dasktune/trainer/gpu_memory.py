"""Sharing the memory of a GPU between the processes of a study."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"

_CHOICES = (PREALLOCATE, "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_ALLOCATOR")


def take_gpu_memory_as_needed(environment: MutableMapping[str, str] | None = None) -> None:
    """Set the variable with which JAX takes memory of a GPU only as it grows.

    By itself JAX takes three quarters of the GPU when it is first used. The check of the resume
    and other trials may train on the same GPU, and the second process would find it full. JAX
    reads the variable at its first use of a device, so its import may come before this call.

    Parameters
    ----------
    environment
        Where the variable is set; if None, in this process.

    Examples
    --------
    >>> plain, chosen = {}, {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.4"}
    >>> take_gpu_memory_as_needed(plain); take_gpu_memory_as_needed(chosen)
    >>> plain, chosen
    ({'XLA_PYTHON_CLIENT_PREALLOCATE': 'false'}, {'XLA_PYTHON_CLIENT_MEM_FRACTION': '0.4'})
    """
    environment = os.environ if environment is None else environment
    if not any(name in environment for name in _CHOICES):
        environment[PREALLOCATE] = "false"
