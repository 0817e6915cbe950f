"""Runs that belong together: how many components there are, and which method finds them."""

from sparse_ncp.solvers.studies.advice import Advice
from sparse_ncp.solvers.studies.choice import choose
from sparse_ncp.solvers.studies.comparison import ComparisonState, compare
from sparse_ncp.solvers.studies.recommendation import RankEvidence, Recommendation, recommend
from sparse_ncp.solvers.studies.runs import Run
from sparse_ncp.solvers.studies.settings import ChoiceSettings, ComparisonSettings, Holdout, SplitHalf, Validation
from sparse_ncp.solvers.studies.state import Choice, ChoiceState
from sparse_ncp.solvers.studies.tables import Row, table

__all__ = [
    "Advice",
    "Choice",
    "ChoiceSettings",
    "ChoiceState",
    "ComparisonSettings",
    "ComparisonState",
    "Holdout",
    "RankEvidence",
    "Recommendation",
    "Row",
    "Run",
    "SplitHalf",
    "Validation",
    "choose",
    "compare",
    "recommend",
    "table",
]
