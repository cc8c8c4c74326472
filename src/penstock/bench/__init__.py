"""Measurements of the engine by itself, and of the native operations."""
