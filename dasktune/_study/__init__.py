"""The study that users create, run and look at."""
