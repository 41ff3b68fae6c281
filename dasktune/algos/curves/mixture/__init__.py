"""Learning-curve prediction by simple rules, weighted by how well they predicted other trials."""
