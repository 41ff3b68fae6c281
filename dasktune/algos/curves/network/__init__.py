"""Learning-curve prediction by a network trained on curves of a prior."""
