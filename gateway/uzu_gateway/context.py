"""What the handlers of one application share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from starlette.requests import Request
from starlette.types import ASGIApp

from uzu_contract.errors import RequestError
from uzu_gateway.background import BackgroundResponses
from uzu_gateway.batches.service import BatchService
from uzu_gateway.engine.port import Capability, Engine, ModelInfo, ModelNotFoundError, cannot
from uzu_gateway.errors import GatewayError
from uzu_gateway.generation import Generations
from uzu_gateway.keys import read_key
from uzu_gateway.response_store import MemoryResponseStore, RedisResponseStore, ResponseStore
from uzu_gateway.settings import Settings
from uzu_gateway.telemetry import RequestRecord, Telemetry

RECORD_KEY = "uzu.record"
"""Where the ASGI scope holds the `RequestRecord`."""


@dataclass(frozen=True)
class Gateway:
    """The parts of a running gateway; `request.app.state.gateway`.

    Args:
        settings: how it is configured.
        engine: what answers.
        telemetry: what it counts.
        responses: what it remembers of `/v1/responses`.
        batches: files and batches.

    """

    settings: Settings
    engine: Engine
    telemetry: Telemetry
    responses: ResponseStore
    batches: BatchService

    @cached_property
    def admin_key(self) -> str | None:
        """The administrator's key, if there is one."""
        path = self.settings.admin_key_file
        return None if path is None else read_key(path)

    @cached_property
    def background(self) -> BackgroundResponses:
        """Responses that nobody waits for."""
        return BackgroundResponses(self.responses, self.generations)

    @property
    def generations(self) -> Generations:
        """Runs generations."""
        return Generations(self.engine, self.telemetry)

    async def resolve_model(self, name: str | None, capability: Capability | None = None) -> str:
        """The served model that a body means.

        Args:
            name: as the body gives it.
            capability: what it must be able to do; one that is left out is looked for among those.

        Raises:
            GatewayError: none was named and there is more than one (or none) to choose from.
            ModelNotFoundError: it is not served.
            RequestError: it lacks the capability.
            EngineError: nobody can tell.

        """
        served = {model.name: model for model in await self.engine.list_models()}
        able = [m for m, info in served.items() if capability is None or capability in info.capabilities]
        wanted = name if name is not None else self.settings.default_model
        if wanted is not None and wanted not in served:
            raise ModelNotFoundError(wanted)
        if wanted is None:
            if not served:
                raise GatewayError("no_backend", "No model is ready. Try again shortly.")
            if len(able) > 1 or not able:
                names = able or list(served)
                if len(names) > 1:
                    raise GatewayError(
                        "model_required", f"model: is required; this server has {', '.join(names)}", "model"
                    )
            wanted = (able or list(served))[0]
        if capability is not None and wanted not in able:
            refusal = cannot(wanted, capability)
            others = f"; {', '.join(able)} can" if able else "; no model of this server can"
            raise RequestError(refusal.code, refusal.message + others, refusal.param)
        return wanted

    async def find_model(self, name: str) -> ModelInfo:
        """A served model, by name.

        Raises:
            ModelNotFoundError: it is not served.
            EngineError: nobody can tell.

        """
        for model in await self.engine.list_models():
            if model.name == name:
                return model
        raise ModelNotFoundError(name)


def make_gateway(settings: Settings, engine: Engine, telemetry: Telemetry, app: ASGIApp) -> Gateway:
    """The parts that the settings ask for."""
    responses: ResponseStore
    if settings.redis_url is None:
        responses = MemoryResponseStore(settings.responses_store_bytes, settings.responses_ttl_s)
    else:
        responses = RedisResponseStore(settings.redis_url, settings.responses_ttl_s)
    return Gateway(settings, engine, telemetry, responses, BatchService(settings, app))


def gateway_of(request: Request) -> Gateway:
    """The gateway that serves a request."""
    gateway: Gateway = request.app.state.gateway
    return gateway


def record_of(request: Request) -> RequestRecord:
    """The record of a request."""
    record: RequestRecord = request.scope[RECORD_KEY]
    return record
