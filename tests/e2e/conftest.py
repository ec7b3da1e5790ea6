"""Fixtures that start `uzu serve`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from uzu_process import ServeFactory, UzuServe

from uzu.settings import Settings


@pytest.fixture
def uzu_serve(
    uzu_command: list[str], settings: Settings, prepared_smollm2: Path, tmp_path: Path
) -> Iterator[ServeFactory]:
    """Start `uzu serve` with arguments; ended after the test."""
    started: list[UzuServe] = []

    def start(*arguments: str, environment: dict[str, str] | None = None) -> UzuServe:
        log = tmp_path / f"serve-{len(started)}.log"
        started.append(UzuServe(uzu_command, settings, log, *arguments, environment=environment))
        return started[-1]

    yield start
    for serve in started:
        serve.close()


@pytest.fixture(scope="session")
def served(
    uzu_command: list[str],
    settings: Settings,
    prepared_smollm2: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[UzuServe]:
    """One `uzu serve` with no arguments but a port, for tests that only ask it things."""
    serve = UzuServe(uzu_command, settings, tmp_path_factory.mktemp("served") / "serve.log")
    try:
        serve.wait_ready()
        yield serve
    finally:
        serve.close()
