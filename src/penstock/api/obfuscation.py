"""Padding of streamed events, so that their sizes tell less of the texts in them to those who see encrypted traffic."""

import secrets

# Bytes. Events have the same size if their texts end between the same two multiples of it.
STEP = 64


def padding(size: int) -> str:
    """Random characters that make `size` bytes a multiple of `STEP` with themselves, at least one."""
    count = STEP - size % STEP
    return secrets.token_hex(count)[:count]
