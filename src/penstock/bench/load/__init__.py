"""Load on any OpenAI-compatible server over HTTP, and what its clients notice."""
