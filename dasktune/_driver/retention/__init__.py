"""The byte budget of a store: the value of each state, and eviction."""
