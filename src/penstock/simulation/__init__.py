"""The engine's own scheduler at work on a simulated clock."""
