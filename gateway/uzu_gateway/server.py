"""Running the gateway: the engine that the settings name, behind uvicorn."""

from __future__ import annotations

import math

import uvicorn

from uzu_gateway.app import create_app
from uzu_gateway.engine.fake import FakeEngine
from uzu_gateway.engine.port import Engine
from uzu_gateway.engine.triton import TritonEngine
from uzu_gateway.request_log import log_config
from uzu_gateway.settings import Settings

KEEP_ALIVE_S = 75
"""Longer than clients keep idle connections, so that none is closed beneath a request."""


def make_engine(settings: Settings) -> Engine:
    """The engine that the settings name."""
    if settings.engine == "fake":
        return FakeEngine()
    return TritonEngine(
        settings.triton_url,
        request_timeout_s=settings.request_timeout_s,
        models_ttl_s=settings.models_ttl_s,
    )


def make_server(settings: Settings, engine: Engine) -> uvicorn.Server:
    """A server that on SIGTERM takes no more requests and lets running ones end for `shutdown_grace_s`."""
    config = uvicorn.Config(
        create_app(settings, engine),
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=log_config(settings.log_level),
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(settings.shutdown_grace_s),
    )
    return uvicorn.Server(config)


def serve(settings: Settings) -> bool:
    """Serve until a signal; false when the server could not start."""
    server = make_server(settings, make_engine(settings))
    server.run()
    return server.started
