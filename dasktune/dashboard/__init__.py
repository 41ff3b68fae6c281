"""The live page: a web server on loopback that shows the studies of a database.

It reads the database alone, in a process of its own, so that a running driver never waits for it.
Tornado serves it and BokehJS draws its plots: both come with Dask's own dashboard.
"""
