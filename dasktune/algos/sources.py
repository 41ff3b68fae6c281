"""From the argument `sampler` of a tuner to the source of its configurations."""

from __future__ import annotations

from dasktune.algos.samplers import RandomSource, Sampler, Source, grid_source
from dasktune.errors import ConfigurationError, unknown
from dasktune.space.define_by_run import SpaceLike


def source_of(space: SpaceLike, sampler: object, seed: int) -> Source:
    """Return the source of a tuner's configurations.

    Parameters
    ----------
    space
        The space to propose from.
    sampler
        A sampler of Optuna, a `Sampler` or a `Source`; ``"grid"`` takes the grid of the space,
        None draws at random.
    seed
        Decides the draws.

    Raises
    ------
    ConfigurationError
        If the sampler is anything else.
    """
    if sampler is None:
        return RandomSource(space, seed)
    if isinstance(sampler, Source):
        return sampler
    if isinstance(sampler, Sampler):
        return sampler.source(space, seed)
    if isinstance(sampler, str):
        if sampler != "grid":
            known = unknown("sampler", sampler, ("grid",))
            raise ConfigurationError(f"{known}, or one of Optuna's, such as TPESampler()")
        return grid_source(space)
    from dasktune.algos.optuna_sampler import OptunaSource

    return OptunaSource(space, sampler, seed)
