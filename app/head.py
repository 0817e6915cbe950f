"""HEAD wherever GET is: a caller may ask for the headers alone. The server leaves the body out by itself."""

from fastapi import APIRouter
from fastapi.routing import APIRoute


def answer_head(router: APIRouter) -> None:
    """Adds what is missing. Not told in OpenAPI: it would double every route and say nothing new."""
    routes = [route for route in router.routes if isinstance(route, APIRoute)]
    answered = {route.path for route in routes if "HEAD" in (route.methods or ())}
    for route in routes:
        if "GET" in (route.methods or ()) and route.path not in answered:
            router.add_api_route(
                route.path.removeprefix(router.prefix),
                route.endpoint,
                methods=["HEAD"],
                response_model=None,
                dependencies=route.dependencies,
                include_in_schema=False,
            )
