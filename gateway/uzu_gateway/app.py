"""The application: routes, middleware and error handlers, joined."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from uzu_contract.errors import RequestError
from uzu_gateway.api import (
    batches,
    chat,
    completions,
    files,
    health,
    messages,
    metrics,
    models,
    responses,
    tokens,
    unserved,
    vectors,
)
from uzu_gateway.context import make_gateway, record_of
from uzu_gateway.disconnect import ClientLeftError
from uzu_gateway.engine.port import Engine, EngineError
from uzu_gateway.errors import GatewayError, as_gateway_error, error_response
from uzu_gateway.in_flight import RequestsInFlight
from uzu_gateway.middleware.body_limit import BodyLimit
from uzu_gateway.middleware.request_scope import RequestScope
from uzu_gateway.request_log import log_failure
from uzu_gateway.settings import Settings
from uzu_gateway.sse import CLIENT_LEFT_STATUS
from uzu_gateway.telemetry import Telemetry

ROUTERS = (
    completions.router,
    chat.router,
    responses.router,
    messages.router,
    files.router,
    batches.router,
    tokens.router,
    models.router,
    vectors.router,
    unserved.router,
    health.router,
    metrics.router,
)
LAST_WORDS_S = 1.0
_ANSWERED = (GatewayError, RequestError, EngineError, HTTPException, RequestValidationError)


def create_app(settings: Settings, engine: Engine) -> FastAPI:
    """The gateway as an ASGI application, which owns `engine` and closes it when it stops."""
    telemetry = Telemetry()
    in_flight = RequestsInFlight(telemetry.requests_in_flight)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        gateway.batches.start()
        yield
        await gateway.batches.close()
        await gateway.background.close()
        # The server has just cancelled what outlived its grace: let it say so to its clients.
        await in_flight.wait_until_none(LAST_WORDS_S)
        await engine.close()
        await gateway.responses.close()

    app = FastAPI(title="Uzu", docs_url=None, redoc_url=None, redirect_slashes=False, lifespan=lifespan)
    gateway = app.state.gateway = make_gateway(settings, engine, telemetry, app)
    for router in ROUTERS:
        app.include_router(router)
    for kind in _ANSWERED:
        app.add_exception_handler(kind, _answer_error)
    app.add_exception_handler(ClientLeftError, _note_client_left)
    app.add_exception_handler(ClientDisconnect, _note_client_left)
    app.add_middleware(
        BodyLimit,
        max_bytes=settings.max_body_bytes,
        exceptions={files.FILES_PATH: settings.max_file_bytes + files.FORM_BYTES},
    )
    app.add_middleware(RequestScope, telemetry=telemetry, in_flight=in_flight)
    return app


async def _answer_error(request: Request, error: Exception) -> Response:
    record = record_of(request)
    log_failure(record, error)
    answer = as_gateway_error(error)
    record.error_code = str(answer.code)
    return error_response(answer, request.url.path)


async def _note_client_left(request: Request, _: Exception) -> Response:
    record_of(request).status = CLIENT_LEFT_STATUS
    return Response(status_code=CLIENT_LEFT_STATUS)
