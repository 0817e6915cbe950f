"""How lists are cut into pages."""

from typing import Annotated

from fastapi import Query

Limit = Annotated[int, Query(ge=1, le=500, description="items on a page")]
Cursor = Annotated[str | None, Query(pattern="^[0-9]{1,16}$", description="`next` of the page before")]
