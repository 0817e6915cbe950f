"""Runs that belong together: how many components there are, and which method finds them."""

from solvers.studies.advice import Advice
from solvers.studies.choice import choose
from solvers.studies.comparison import ComparisonState, Row, Run, compare, table
from solvers.studies.settings import ChoiceSettings, ComparisonSettings, Holdout, SplitHalf, Validation
from solvers.studies.state import Choice, ChoiceState

__all__ = [
    "Advice",
    "Choice",
    "ChoiceSettings",
    "ChoiceState",
    "ComparisonSettings",
    "ComparisonState",
    "Holdout",
    "Row",
    "Run",
    "SplitHalf",
    "Validation",
    "choose",
    "compare",
    "table",
]
