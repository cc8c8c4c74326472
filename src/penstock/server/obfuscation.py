"""Padding of streamed events, so that their sizes tell less of the texts in them to those who see encrypted traffic."""

import secrets

# Events with up to so many bytes of text between two multiples of it have one size.
STEP = 64


def padding(size: int) -> str:
    """Random characters that make `size` bytes a multiple of `STEP` with themselves, at least one."""
    count = STEP - size % STEP
    return secrets.token_hex(count)[:count]
