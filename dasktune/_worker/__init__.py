"""The worker side of a study: runs stages and saves their checkpoints."""
