"""Options of the gateway that `uzu serve` hands on."""

from pathlib import Path

from uzu.gateway_options import OURS, gateway_arguments
from uzu_gateway.__main__ import parse_arguments
from uzu_gateway.settings import Settings


def test_the_gateway_understands_what_it_is_given(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret\n")
    options = {"strict_fields": "true", "admin_key_file": str(key), "batch_concurrency": "2"}
    settings = parse_arguments(gateway_arguments(options, tmp_path / "data"))
    assert settings == Settings(
        strict_fields=True, admin_key_file=key, batch_concurrency=2, data_dir=tmp_path / "data"
    )


def test_what_is_said_counts(tmp_path: Path) -> None:
    options = {"strict_fields": "false", "data_dir": str(tmp_path / "own")}
    settings = parse_arguments(gateway_arguments(options, tmp_path / "data"))
    assert settings == Settings(data_dir=tmp_path / "own")


def test_what_uzu_serve_sets_are_options_of_the_gateway() -> None:
    assert set(OURS) <= set(Settings.model_fields)
