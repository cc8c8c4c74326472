"""The live page at `/`: what the server does, as it changes, and a place to chat with the model."""
