"""Makes smaller checkpoints of models, and scores what that costs."""
