"""A tuner and a dispatcher together: events in, orders out; pure."""
