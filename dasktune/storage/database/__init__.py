"""The database of studies, trials, event logs, metrics and leases (SQLAlchemy)."""
