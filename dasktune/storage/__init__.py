"""Where states, metrics and studies are kept: checkpoints as zarr, the rest in a database."""
