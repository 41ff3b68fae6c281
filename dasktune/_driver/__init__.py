"""The driver side of a running study: connects the engine to Dask, store and database."""
