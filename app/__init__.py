"""HTTP: the routes, the event stream and the page of the lab server."""
