"""The database of studies, trials, event logs, metrics and leases (SQLAlchemy)."""

from dasktune.storage.database.database import Batch, Database

__all__ = ["Batch", "Database"]
