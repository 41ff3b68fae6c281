"""dasktune: hyper-parameter tuning on Dask that never trains the same steps twice."""

__version__ = "0.1.0"
