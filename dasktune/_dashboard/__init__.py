"""The page of a study: live from a web server on loopback, or in a file as the report.

The server reads the database alone, in a process of its own, so that a running driver never waits
for it. Tornado serves the page and BokehJS draws its plots: both come with Dask's own dashboard.
"""
