"""Workers that are jobs of SLURM: what to ask for, and a cluster of them."""

from dasktune.slurm.options import SlurmOptions
from dasktune.slurm.table import options_for
from dasktune.slurm.workers import slurm_client

__all__ = ["SlurmOptions", "options_for", "slurm_client"]
