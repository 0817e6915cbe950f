"""Exceptions and warnings of the package."""


class InvalidInput(ValueError):
    """Invalid input.

    Attributes
    ----------
    field, problem, remedy : str
        The field that is wrong, what is wrong with it, and what to do. The message joins all three.

    Examples
    --------
    >>> from sparse_ncp import InvalidInput
    >>> print(InvalidInput("rank", "is 0", "give at least 1"))
    rank: is 0; give at least 1
    """

    def __init__(self, field: str, problem: str, remedy: str) -> None:
        super().__init__(f"{field}: {problem}; {remedy}")
        self.field = field
        self.problem = problem
        self.remedy = remedy


class AdviceWarning(UserWarning):
    """Valid settings that will hardly have the intended effect.

    Examples
    --------
    >>> import warnings
    >>> from sparse_ncp import AdviceWarning
    >>> warnings.simplefilter("error", AdviceWarning)  # to stop instead of going on
    >>> warnings.resetwarnings()
    """
