"""The layout of a folder that the native engine loads (Hugging Face's, with OpenVINO weights)."""

from __future__ import annotations

from pathlib import Path

from uzu.errors import UsageError

WEIGHTS = "openvino_model.xml"
REQUIRED = (WEIGHTS, "openvino_model.bin", "tokenizer.json", "config.json")
OPTIONAL = ("tokenizer_config.json", "generation_config.json", "chat_template.jinja")


def check_model_folder(folder: Path) -> None:
    """Raise a `UsageError` that lists what is missing."""
    missing = [name for name in REQUIRED if not (folder / name).is_file()]
    if not missing:
        return
    message = f"{folder} is not a model that the native engine loads: it has no {', '.join(missing)}"
    ggufs = sorted(path.name for path in folder.glob("*.gguf"))
    if ggufs:
        message += f"; it has {', '.join(ggufs)}: name that file itself"
    elif any(folder.glob("*.safetensors")):
        message += "; convert it first: " + conversion_advice(str(folder))
    raise UsageError(message)


def conversion_advice(model: str) -> str:
    """How to turn Hugging Face weights into such a folder."""
    return f"uzu setup convert, then uzu convert {model} FOLDER, and serve FOLDER"
