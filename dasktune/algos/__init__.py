"""Tuners: what decides which trials are trained, and how far."""

from dasktune.algos.base import Tuner
from dasktune.algos.grid import Grid
from dasktune.algos.random import Random

__all__ = ["Grid", "Random", "Tuner"]
