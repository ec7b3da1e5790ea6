"""What the handlers of one application share."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from uzu_gateway.engine.port import Engine, ModelInfo, ModelNotFoundError
from uzu_gateway.errors import GatewayError
from uzu_gateway.generation import Generations
from uzu_gateway.settings import Settings
from uzu_gateway.telemetry import RequestRecord, Telemetry

RECORD_KEY = "uzu.record"
"""Where the ASGI scope holds the `RequestRecord`."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """The parts of a running gateway; `request.app.state.gateway`.

    Args:
        settings: how it is configured.
        engine: what answers.
        telemetry: what it counts.

    """

    settings: Settings
    engine: Engine
    telemetry: Telemetry

    @property
    def generations(self) -> Generations:
        """Runs generations."""
        return Generations(self.engine, self.telemetry)

    async def resolve_model(self, name: str | None) -> str:
        """The served model that a body means.

        Raises:
            GatewayError: none was named and there is more than one (or none) to choose from.
            ModelNotFoundError: it is not served.
            EngineError: nobody can tell.

        """
        served = [model.name for model in await self.engine.list_models()]
        wanted = name if name is not None else self.settings.default_model
        if wanted is not None:
            if wanted in served:
                return wanted
            raise ModelNotFoundError(wanted)
        if not served:
            raise GatewayError("no_backend", "No model is ready. Try again shortly.")
        if len(served) > 1:
            raise GatewayError(
                "model_required", f"model: is required; this server has {', '.join(served)}", "model"
            )
        return served[0]

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


def gateway_of(request: Request) -> Gateway:
    """The gateway that serves a request."""
    gateway: Gateway = request.app.state.gateway
    return gateway


def record_of(request: Request) -> RequestRecord:
    """The record of a request."""
    record: RequestRecord = request.scope[RECORD_KEY]
    return record
