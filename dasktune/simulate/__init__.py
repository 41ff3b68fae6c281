"""Running a study without training: a virtual clock, simulated workers, given curves."""
