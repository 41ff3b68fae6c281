"""Files of a store: local folders and object stores behind one interface."""
