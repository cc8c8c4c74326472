"""From a directory or a hub name to weights in memory."""
