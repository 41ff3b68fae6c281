"""Recorded learning curves: the trace, its files, timing, and the recording of a study."""
