"""The revisions of the tables, one script each, as Alembic wants them."""
