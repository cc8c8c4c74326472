"""Measurements of the engine by itself."""
