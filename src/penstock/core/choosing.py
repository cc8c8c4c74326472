"""What is asked of a device that chooses tokens where their logits are, and what it finds."""

Asked = tuple[int, float, int, float, float, tuple[int, int, int]]
"""Row of the logits, temperature, top_k, top_p, log_min_p, and the key of the output position."""

Found = tuple[int, float, float]
"""Token, the row's peak, the token's log probability."""
