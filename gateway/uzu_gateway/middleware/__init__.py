"""Pure ASGI middleware, outermost first: `RequestScope`, `BodyLimit`."""
