"""Puts an engine together from its rooms: for the command line and for `penstock.llm` only."""

from penstock.runtime.threads import limit_spinning

# Here, because every way to an engine passes here before it imports torch; where a program has imported torch already,
# the setting comes too late and changes nothing.
limit_spinning()
