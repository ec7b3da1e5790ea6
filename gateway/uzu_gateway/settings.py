"""What can be configured about the gateway, with ranges; the command line is made from it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from uzu_gateway.keys import read_key

MEBIBYTE = 1 << 20


def _readable(path: Path) -> Path:
    read_key(path)
    return path


AdminKeyFile = Annotated[Path, AfterValidator(_readable)]


class Settings(BaseModel):
    """Options of one gateway process. Unknown names and values out of range raise `ValidationError`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(default=8080, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    engine: Literal["triton", "fake"] = Field(
        default="triton",
        description="what answers: a Triton server, or the in-memory fake for developing clients",
    )
    triton_url: str = Field(
        default="127.0.0.1:8001",
        pattern=r"^[^\s/]+:\d{1,5}$",
        description="host:port of Triton's gRPC service",
    )
    default_model: str | None = Field(
        default=None,
        min_length=1,
        description="model of requests that name none (needed when several are served)",
    )
    admin_key_file: AdminKeyFile | None = Field(
        default=None,
        description="file whose first line is the key that loads and unloads models; without it nobody may",
    )
    max_body_bytes: int = Field(default=64 * MEBIBYTE, ge=1, description="longest request body")
    max_prompts: int = Field(
        default=256, ge=1, le=4096, description="most prompts in one completions request"
    )
    responses_ttl_s: float = Field(
        default=86_400.0, gt=0, le=31_536_000, description="seconds for which `/v1/responses` are kept"
    )
    responses_store_bytes: int = Field(
        default=64 * MEBIBYTE, ge=1, description="most that is kept of them in memory; the oldest go first"
    )
    redis_url: str | None = Field(
        default=None,
        pattern=r"^(rediss?|unix)://",
        description="keep them in this Redis instead, which several gateways may share",
    )
    data_dir: Path | None = Field(
        default=None,
        description="folder that keeps files and batches through restarts; without it both are refused",
    )
    data_ttl_s: float = Field(
        default=30 * 86_400.0, gt=0, description="seconds after which files and ended batches are removed"
    )
    max_file_bytes: int = Field(default=200 * MEBIBYTE, ge=1, description="longest file that is uploaded")
    max_files_bytes: int = Field(
        default=4096 * MEBIBYTE, ge=1, description="most that all files together may take"
    )
    batch_concurrency: int = Field(
        default=4, ge=1, le=1024, description="most requests of batches that run at once"
    )
    strict_fields: bool = Field(
        default=False,
        description="refuse unknown fields of a body with 400 instead of ignoring and counting them",
    )
    shutdown_grace_s: float = Field(
        default=10.0, ge=0, le=3600, description="seconds that running requests may go on after SIGTERM"
    )
    request_timeout_s: float = Field(
        default=3600.0,
        gt=0,
        description="seconds after which a generation is cancelled and answered with 504",
    )
    models_ttl_s: float = Field(
        default=1.0, ge=0, le=60, description="seconds for which the list of served models is remembered"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info",
        description="least severe lines that are logged: one for each request is `info`, failures are "
        "`warning` and `error`",
    )
