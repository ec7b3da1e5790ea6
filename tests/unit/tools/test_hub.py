import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

from uzu.console import Console
from uzu.errors import PreparationError, UsageError
from uzu.hub import RemoteFile, choose_files, fetch_from_hub
from uzu.sources.specifier import HubModel
from uzu.store import Store

COMMIT = "a" * 40


class Hub:
    """A small server that answers as the hub does for one repository, `org/model`."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.claimed: dict[str, str] = {}
        self.requests: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.answer(self, body=True)

            def do_HEAD(self) -> None:
                hub.answer(self, body=False)

            def log_message(self, *arguments: object) -> None:
                hub.requests.append(self.path)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def answer(self, handler: BaseHTTPRequestHandler, *, body: bool) -> None:
        path = unquote(handler.path.partition("?")[0])
        content, headers, status = b"", {}, 200
        if path in ("/api/models/org/model", "/api/models/org/model/revision/v1"):
            headers["Content-Type"] = "application/json"
            content = json.dumps({"id": "org/model", "sha": COMMIT, "siblings": self.siblings()}).encode()
        elif path.startswith("/api/models/org/model/revision/"):
            status, headers["X-Error-Code"] = 404, "RevisionNotFound"
        elif path.startswith(f"/org/model/resolve/{COMMIT}/"):
            content = self.files[path.split("/", 5)[5]]
            headers |= {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
        elif path.startswith("/api/models/broken/"):
            status = 500
        else:
            status, headers["X-Error-Code"] = 404, "RepoNotFound"
        handler.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        if body:
            handler.wfile.write(content)

    def siblings(self) -> list[dict[str, object]]:
        listed = []
        for name, content in self.files.items():
            digest = self.claimed.get(name, hashlib.sha256(content).hexdigest())
            lfs = {"sha256": digest, "size": len(content), "pointerSize": 1}
            listed.append({"rfilename": name, "size": len(content), "lfs": lfs})
        return listed


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    thread = threading.Thread(target=hub.server.serve_forever)
    thread.start()
    yield hub
    hub.server.shutdown()
    hub.server.server_close()
    thread.join()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home", Console(color=False))


def test_an_openvino_folder_is_fetched_once(hub: Hub, store: Store) -> None:
    wanted = {"openvino_model.xml", "openvino_model.bin", "tokenizer.json", "config.json"}
    hub.files = {name: name.encode() for name in (*wanted, "pytorch_model.bin", "onnx/model.onnx")}
    model = HubModel("org/model", "v1")
    entry = fetch_from_hub(store, model, Console(color=False), endpoint=hub.url)
    found = {path.name for path in entry.path.iterdir() if not path.name.startswith(".")}
    assert found == wanted
    assert entry.details == {"source": "org/model@v1", "revision": COMMIT}
    asked = len(hub.requests)
    assert not fetch_from_hub(store, model, Console(color=False), endpoint=hub.url).built
    assert len(hub.requests) == asked > 0


def test_a_named_gguf_is_fetched_alone(hub: Hub, store: Store) -> None:
    hub.files = {"m-Q4_0.gguf": b"four", "m-Q8_0.gguf": b"eight"}
    entry = fetch_from_hub(
        store, HubModel("org/model", None, "m-Q8_0.gguf"), Console(color=False), endpoint=hub.url
    )
    assert (entry.path / "m-Q8_0.gguf").read_bytes() == b"eight"
    assert not (entry.path / "m-Q4_0.gguf").exists()


def test_a_wrong_checksum_is_refused(hub: Hub, store: Store, tmp_path: Path) -> None:
    hub.files = {"m.gguf": b"content"}
    hub.claimed = {"m.gguf": "0" * 64}
    with pytest.raises(PreparationError, match=r"m\.gguf has another SHA-256 than the hub says"):
        fetch_from_hub(store, HubModel("org/model"), Console(color=False), endpoint=hub.url)
    assert not list((tmp_path / "home" / "packages").iterdir())


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (HubModel("nobody/nothing"), "knows no such public model, and there is no such folder here"),
        (HubModel("org/model", "v9"), "knows no revision 'v9'"),
        (
            HubModel("org/model"),
            "hf download org/model --local-dir CHECKPOINT, uzu setup convert, then uzu convert",
        ),
    ],
)
def test_what_the_hub_does_not_have_is_said(hub: Hub, store: Store, model: HubModel, says: str) -> None:
    hub.files = {"model.safetensors": b"x"}
    with pytest.raises(UsageError, match=says):
        fetch_from_hub(store, model, Console(color=False), endpoint=hub.url)


def test_no_network_is_said(store: Store, free_port: int) -> None:
    with pytest.raises(PreparationError, match="the hub cannot be reached"):
        fetch_from_hub(
            store, HubModel("org/model"), Console(color=False), endpoint=f"http://127.0.0.1:{free_port}"
        )


def test_files_are_chosen() -> None:
    def names(model: HubModel, *files: str) -> list[str]:
        return [file.name for file in choose_files(model, [RemoteFile(name, 1, None) for name in files])]

    plain = HubModel("org/model")
    assert names(plain, "a.gguf", "README.md") == ["a.gguf"]
    assert names(plain, "int4/openvino_model.xml", "int4/openvino_model.bin", "config.json") == [
        "int4/openvino_model.xml",
        "int4/openvino_model.bin",
    ]
    with pytest.raises(UsageError, match=r"org/model:FILE \(it has: a\.gguf, b\.gguf\)"):
        names(plain, "a.gguf", "b.gguf")
    with pytest.raises(UsageError, match=r"has no file c\.gguf \(it has: a\.gguf\)"):
        names(HubModel("org/model", None, "c.gguf"), "a.gguf")
