"""How often drafts are right."""

# A drafted token weighs less by the factor `OLDER` with each that is judged after it. What all sequences have shown
# counts as `COMMON` tokens of a sequence's own.
OLDER = 0.9
COMMON = 4.0


class Acceptance:
    """How often drafted tokens have been right lately."""

    __slots__ = ("judged", "older", "right")

    def __init__(self, older: float = OLDER) -> None:
        self.older = older
        self.right = self.judged = 0.0

    def add(self, right: float, judged: float) -> None:
        """Of `judged` tokens `right` were right."""
        older = self.older**judged
        self.right = older * self.right + right
        self.judged = older * self.judged + judged

    def rate(self, common: float) -> float:
        """The part that is right, where `common` is what all sequences have shown."""
        return (self.right + COMMON * common) / (self.judged + COMMON)
