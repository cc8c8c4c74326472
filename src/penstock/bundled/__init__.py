"""Models that need no download. For now: a tiny random one, made on first use, that shows the machinery only."""
