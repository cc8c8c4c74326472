"""Speculative decoding: who drafts tokens, and the one verifier that accepts them."""
