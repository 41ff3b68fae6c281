"""Dask clusters as sets of workers: local ones, and connections to existing ones."""
