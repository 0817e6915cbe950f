"""What the package raises and warns of."""


class InvalidInput(ValueError):
    """Invalid input: names the field, what is wrong with it, and the remedy."""

    def __init__(self, field: str, problem: str, remedy: str) -> None:
        super().__init__(f"{field}: {problem}; {remedy}")
        self.field = field
        self.problem = problem
        self.remedy = remedy


class AdviceWarning(UserWarning):
    """Valid settings that will hardly do what they are meant to."""
