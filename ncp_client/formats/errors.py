"""The exception of this package."""


class UnreadableFile(ValueError):
    """A file that is not a tensor, or cannot be read as one.

    Attributes
    ----------
    problem, remedy : str
        What is wrong with the file, and what to do about it.

    Examples
    --------
    >>> from ncp_client.formats.errors import UnreadableFile
    >>> print(UnreadableFile("is empty", "save the array again"))
    is empty; save the array again
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem}; {self.remedy}"
