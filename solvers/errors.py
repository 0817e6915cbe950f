"""What the package refuses, and what it warns of."""


class InvalidInput(ValueError):
    """Refused at the door: names the field, what is wrong with it, and the remedy."""

    def __init__(self, field: str, problem: str, remedy: str) -> None:
        super().__init__(f"{field}: {problem}; {remedy}")
        self.field = field
        self.problem = problem
        self.remedy = remedy


class AdviceWarning(UserWarning):
    """The settings are valid, but will hardly do what they were meant to."""
