"""What goes wrong with a provider's answer."""


class BrokenAnswer(Exception):
    """An answer cannot be read, or ended before it was complete; says how."""
