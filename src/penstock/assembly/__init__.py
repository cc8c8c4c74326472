"""Puts an engine together from its rooms: for the command line and for `penstock.llm`, and for nobody else."""

from penstock.runtime.threads import limit_spinning

# Here, because every way to an engine passes here before it imports torch.
limit_spinning()
