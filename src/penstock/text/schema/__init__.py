"""JSON schemas: what of them outputs can be held to."""
