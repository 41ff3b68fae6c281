"""Read-only results of a study: summary, predictions, inventory, merge rate."""
