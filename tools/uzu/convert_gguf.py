"""The process that turns a GGUF file into OpenVINO's format: `python -m uzu.convert_gguf FILE`.

The result lies beside FILE. It is a process of its own because the library's reader may abort on a file that
it does not like, and keeps its memory.
"""

from __future__ import annotations

import sys


def main(file: str) -> None:
    """Convert; raises whatever the library raises."""
    # The wheel of openvino reports its use to a server unless its telemetry package cannot be imported.
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    import openvino_genai

    openvino_genai.LLMPipeline(file, "CPU", enable_save_ov_model=True)


if __name__ == "__main__":
    main(sys.argv[1])
