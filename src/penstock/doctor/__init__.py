"""What limits a machine or a running server, from figures that were read there, each with where it was read."""
