"""GET /v1/methods: the registry of solver methods."""

from fastapi import APIRouter
from pydantic import BaseModel, Field

from sparse_ncp.app.auth.authenticate import API_PREFIX
from sparse_ncp.app.routes.openapi import error_responses
from sparse_ncp.solvers import METHODS

router = APIRouter(prefix=f"{API_PREFIX}/methods", tags=["server"])


class MethodAnswer(BaseModel):
    """A method and its properties."""

    name: str
    title: str
    penalty: str = Field(description="penalty of the paper, used by default")
    monotone: bool = Field(description="the objective never rises, except by rounding")
    exact: bool = Field(description="each mode's problem is solved to its minimum")
    options: list[str] = Field(description="settings that belong to this method")


@router.get("", response_model=list[MethodAnswer], responses=error_responses())
async def list_methods() -> list[MethodAnswer]:
    """List the methods."""
    return [
        MethodAnswer(
            name=name,
            title=method.title,
            penalty=method.penalty,
            monotone=method.monotone,
            exact=method.exact,
            options=sorted(method.options),
        )
        for name, method in METHODS.items()
    ]
