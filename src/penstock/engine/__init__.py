"""The engine: its loop, the process boundary, and the client that the server and `penstock.LLM` use."""
