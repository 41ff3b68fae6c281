"""Learning-curve prediction by fitting parametric families with MCMC."""
