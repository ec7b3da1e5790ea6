"""Loading and running a model talks to nobody."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path


def test_loading_and_running_opens_no_connection(prepared_smollm2: Path, settings):
    script = """
        import json, socket, sys
        tried = []
        def refuse(name):
            def call(self, address, *rest):
                tried.append([name, str(address)])
                raise OSError("no connections")
            return call
        socket.socket.connect = refuse("connect")
        socket.socket.connect_ex = refuse("connect_ex")
        from native_engine import real_engine, random_prompt
        from pathlib import Path
        from uzu_contract.sampling import SamplingParams
        with real_engine(Path(sys.argv[1]), kv_cache_tokens=512) as engine:
            (answer,) = engine.run((random_prompt(8, 0), SamplingParams(max_tokens=4)))
        modules = [m for m in sys.modules if m.startswith("openvino_telemetry") and sys.modules[m]]
        print(json.dumps({"tried": tried, "modules": modules, "tokens": len(answer.token_ids)}))
    """
    environment = dict(settings.environment)
    environment["PYTHONPATH"] += f":{Path(__file__).parent}"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(prepared_smollm2)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    result = json.loads(done.stdout)
    assert result["tokens"] > 0
    assert result["tried"] == []
    assert result["modules"] == []
