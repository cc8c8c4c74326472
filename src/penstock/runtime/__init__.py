"""Executes plans: request rows, gathering of inputs, KV storage."""
