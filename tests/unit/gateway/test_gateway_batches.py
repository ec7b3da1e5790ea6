"""Files and batches, over the fake engine."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from uzu_contract.errors import ErrorCode, RequestError
from uzu_contract.request import MAX_PRIORITY, GenerateRequest
from uzu_gateway.app import create_app
from uzu_gateway.batches.files import FileStore
from uzu_gateway.batches.folder import DataFolder
from uzu_gateway.batches.journal import Journal
from uzu_gateway.engine.fake import FakeBehaviour, FakeEngine
from uzu_gateway.errors import GatewayError
from uzu_gateway.settings import Settings

AssertError = Callable[..., dict[str, Any]]
Opened = Callable[..., Any]


class Counting(FakeEngine):
    """Knows how many generations ran at once."""

    most = 0

    def behaviour_for(self, request: GenerateRequest) -> FakeBehaviour:
        self.most = max(self.most, self.running)
        return super().behaviour_for(request)


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    """`async with opened(engine) as client:`, a gateway whose data folder is the test's."""

    @asynccontextmanager
    async def start(engine: FakeEngine, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
        app = create_app(Settings(**{"data_dir": tmp_path / "data", **settings}), engine)
        transport = httpx.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://gateway") as client,
        ):
            yield client

    return start


def line(custom_id: str, prompt: str = "a b", url: str = "/v1/completions", **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"prompt": prompt, **body}}


def jsonl(*lines: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(item).encode() + b"\n" for item in lines)


async def upload(client: httpx.AsyncClient, content: bytes, **data: str) -> dict[str, Any]:
    response = await client.post(
        "/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch", **data}
    )
    assert response.status_code == 200, response.text
    made: dict[str, Any] = response.json()
    return made


async def begin(client: httpx.AsyncClient, content: bytes, **fields: Any) -> dict[str, Any]:
    stored = await upload(client, content)
    body = {
        "input_file_id": stored["id"],
        "endpoint": "/v1/completions",
        "completion_window": "24h",
        **fields,
    }
    response = await client.post("/v1/batches", json=body)
    assert response.status_code == 200, response.text
    made: dict[str, Any] = response.json()
    return made


async def until(client: httpx.AsyncClient, batch_id: str, *statuses: str) -> dict[str, Any]:
    for _ in range(1000):
        batch: dict[str, Any] = (await client.get(f"/v1/batches/{batch_id}")).json()
        if batch["status"] in statuses:
            return batch
        await asyncio.sleep(0.01)
    raise AssertionError(batch)


async def ended(client: httpx.AsyncClient, batch_id: str) -> dict[str, Any]:
    return await until(client, batch_id, "completed", "failed", "expired", "cancelled")


async def content(client: httpx.AsyncClient, file_id: str) -> list[dict[str, Any]]:
    response = await client.get(f"/v1/files/{file_id}/content")
    assert response.status_code == 200
    return [json.loads(raw) for raw in response.text.splitlines()]


async def test_files(opened: Opened, engine: FakeEngine, assert_error: AssertError) -> None:
    async with opened(engine) as client:
        first = await upload(client, b"one\n")
        assert (first["bytes"], first["filename"], first["purpose"]) == (4, "in.jsonl", "batch")
        form = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
        second = await upload(client, b"two", **form)
        assert second["expires_at"] == second["created_at"] + 3600
        listed = (await client.get("/v1/files")).json()
        assert {item["id"] for item in listed["data"]} == {first["id"], second["id"]}
        page = (await client.get("/v1/files?limit=1&order=asc")).json()
        assert page["has_more"]
        rest = (await client.get(f"/v1/files?order=asc&after={page['last_id']}")).json()
        assert [len(page["data"]), len(rest["data"]), rest["has_more"]] == [1, 1, False]
        assert (await client.get(f"/v1/files/{first['id']}")).json() == first
        assert (await client.get(f"/v1/files/{first['id']}/content")).content == b"one\n"
    async with opened(engine) as client:
        assert (await client.get(f"/v1/files/{first['id']}")).json() == first
        assert (await client.delete(f"/v1/files/{first['id']}")).json()["deleted"]
        for path in (f"/v1/files/{first['id']}", f"/v1/files/{first['id']}/content", "/v1/files/..%2Flock"):
            assert_error(await client.get(path), 404, "not_found")


async def test_what_is_no_upload(opened: Opened, engine: FakeEngine, assert_error: AssertError) -> None:
    async with opened(engine, max_file_bytes=100, max_files_bytes=150) as client:

        async def refused(status: int, code: str, param: str | None = None, **fields: Any) -> None:
            assert_error(await client.post("/v1/files", **fields), status, code, param)

        one = {"file": ("f", b"x" * 90)}
        await refused(400, "unsupported_parameter", "purpose", files=one, data={"purpose": "assistants"})
        await refused(400, "unsupported_parameter", "purpose", files=one)
        await refused(400, "invalid_parameter", "color", files=one, data={"purpose": "batch", "color": "red"})
        await refused(400, "invalid_content_type", json={"purpose": "batch"})
        kind = {"content-type": "multipart/form-data"}
        await refused(400, "invalid_request", content=b"x", headers=kind)
        long = {"file": ("f", b"x" * 101)}
        await refused(413, "body_too_large", files=long, data={"purpose": "batch"})
        longer = {"file": ("f", b"x" * 100_000)}
        await refused(413, "body_too_large", files=longer, data={"purpose": "batch"})
        soon = {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "1"}
        await refused(400, "invalid_parameter", "expires_after.seconds", files=one, data=soon)
        await upload(client, b"x" * 90)
        await refused(503, "store_unavailable", files=one, data={"purpose": "batch"})
        assert len((await client.get("/v1/files")).json()["data"]) == 1


async def test_without_a_folder(client: httpx.AsyncClient, assert_error: AssertError) -> None:
    for path in ("/v1/files", "/v1/batches"):
        error = assert_error(await client.get(path), 400, "unsupported_operation")
        assert "--data-dir" in error["message"]


async def test_a_folder_has_one_gateway(
    opened: Opened, engine: FakeEngine, assert_error: AssertError
) -> None:
    async with opened(engine), opened(engine) as second:
        assert_error(await second.get("/v1/files"), 503, "store_unavailable")
    async with opened(engine) as third:
        assert (await third.get("/v1/files")).status_code == 200


async def test_a_batch(opened: Opened) -> None:
    engine = Counting(behaviour=FakeBehaviour(chunk_delay_s=0.01))
    lines = [line(f"r{n}", f"p{n} x") for n in range(9)] + [line("bad", max_tokens=0)]
    async with opened(engine, batch_concurrency=3) as client:
        batch = await begin(client, jsonl(*lines), metadata={"a": "b"})
        assert (batch["object"], batch["status"], batch["metadata"]) == ("batch", "validating", {"a": "b"})
        batch = await ended(client, batch["id"])
        assert batch["status"] == "completed"
        assert batch["request_counts"] == {"total": 10, "completed": 9, "failed": 1}
        assert batch["in_progress_at"] <= batch["finalizing_at"] <= batch["completed_at"]
        output = {item["custom_id"]: item for item in await content(client, batch["output_file_id"])}
        assert set(output) == {f"r{n}" for n in range(9)}
        assert output["r4"]["response"]["status_code"] == 200
        assert output["r4"]["response"]["body"]["choices"][0]["text"] == "p4 x"
        assert output["r4"]["error"] is None
        (bad,) = await content(client, batch["error_file_id"])
        assert (bad["custom_id"], bad["response"]["status_code"]) == ("bad", 400)
        assert bad["response"]["body"]["error"]["param"] == "max_tokens"
        listed = (await client.get("/v1/batches")).json()
        assert [item["id"] for item in listed["data"]] == [batch["id"]]
        metrics = (await client.get("/metrics")).text
        assert "uzu_gateway_generations_in_flight 0.0" in metrics
    assert 1 < engine.most <= 3
    assert {request.priority for _, request, _ in engine.requests} == {MAX_PRIORITY}
    assert all(request_id.startswith(batch["id"]) for _, _, request_id in engine.requests)


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/responses", {"input": "a"}),
        ("/v1/embeddings", {"input": "a"}),
    ],
)
async def test_every_endpoint(
    opened: Opened, engine: FakeEngine, endpoint: str, body: dict[str, Any]
) -> None:
    item = {"custom_id": "1", "method": "POST", "url": endpoint, "body": body}
    async with opened(engine) as client:
        batch = await begin(client, jsonl(item), endpoint=endpoint)
        batch = await ended(client, batch["id"])
        name = "error_file_id" if endpoint == "/v1/embeddings" else "output_file_id"
        (answer,) = await content(client, batch[name])
        assert answer["response"]["status_code"] == (400 if endpoint == "/v1/embeddings" else 200)


WRONG = [
    (b"", None, "empty_file"),
    (b"{\n", 1, "invalid_json_line"),
    (jsonl(line("a"), line("a")), 2, "duplicate_custom_id"),
    (jsonl(line("a", url="/v1/chat/completions")), 1, "invalid_request"),
    (jsonl({**line("a"), "method": "GET"}), 1, "invalid_request"),
    (jsonl({**line("a"), "extra": 1}), 1, "invalid_request"),
    (jsonl({**line("a"), "body": "x"}), 1, "invalid_request"),
    (jsonl({**line("a"), "custom_id": 7}), 1, "invalid_request"),
    (jsonl(line("a", "x" * 3000)), 1, "line_too_long"),
    (b"\xff\xfe\n", 1, "invalid_json_line"),
    (b'{"a": NaN}\n', 1, "invalid_json_line"),
]


@pytest.mark.parametrize(("raw", "number", "code"), WRONG)
async def test_a_wrong_input_fails_the_batch(
    opened: Opened, engine: FakeEngine, raw: bytes, number: int | None, code: str
) -> None:
    async with opened(engine, max_body_bytes=2000) as client:
        batch = await ended(client, (await begin(client, raw))["id"])
    assert batch["status"] == "failed"
    error = batch["errors"]["data"][0]
    assert (error["line"], error["code"]) == (number, code)
    assert (batch["output_file_id"], batch["error_file_id"], engine.started) == (None, None, 0)


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"endpoint": "/v1/models"}, 400, "invalid_parameter", "endpoint"),
        ({"completion_window": "soon"}, 400, "invalid_parameter", "completion_window"),
        ({"completion_window": "169h"}, 400, "invalid_parameter", "completion_window"),
        ({"input_file_id": "file-1"}, 404, "not_found", None),
        ({"input_file_id": "../../x"}, 404, "not_found", None),
        ({"metadata": {"a": 1}}, 400, "invalid_parameter", "metadata"),
    ],
)
async def test_wrong_bodies(
    opened: Opened,
    engine: FakeEngine,
    assert_error: AssertError,
    fields: dict[str, Any],
    status: int,
    code: str,
    param: str | None,
) -> None:
    async with opened(engine) as client:
        stored = await upload(client, jsonl(line("a")))
        body = {"input_file_id": stored["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
        assert_error(await client.post("/v1/batches", json={**body, **fields}), status, code, param)
        assert_error(await client.get("/v1/batches/batch_1"), 404, "not_found")
        assert_error(await client.post("/v1/batches/batch_1/cancel"), 404, "not_found")


async def test_streams_are_refused(opened: Opened, engine: FakeEngine) -> None:
    async with opened(engine) as client:
        batch = await ended(client, (await begin(client, jsonl(line("a", stream=True))))["id"])
        (bad,) = await content(client, batch["error_file_id"])
    assert bad["response"]["body"]["error"]["param"] == "stream"
    assert engine.started == 0


async def test_a_backend_that_is_full_is_waited_for(opened: Opened) -> None:
    class Full(FakeEngine):
        refusals = 3

        def behaviour_for(self, request: GenerateRequest) -> FakeBehaviour:
            self.refusals -= 1
            failure = RequestError(ErrorCode.DEADLINE_EXCEEDED, "late") if self.refusals > 0 else None
            return FakeBehaviour(failure=failure)

    engine = Full()
    async with opened(engine) as client:
        batch = await ended(client, (await begin(client, jsonl(line("a"))))["id"])
    assert batch["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
    assert (engine.failed, engine.finished) == (2, 1)


class Stuck(FakeEngine):
    """Answers one request, and lets others wait as long as it is stuck."""

    is_stuck = True

    def behaviour_for(self, request: GenerateRequest) -> FakeBehaviour:
        waits = self.is_stuck and self.started > 1
        return FakeBehaviour(reply="x", first_chunk_delay_s=60 if waits else 0)


async def test_cancelling(opened: Opened, eventually: Any, assert_error: AssertError) -> None:
    engine = Stuck()
    async with opened(engine, batch_concurrency=2) as client:
        batch = await begin(client, jsonl(*(line(f"r{n}") for n in range(50))))
        await eventually(lambda: engine.started == 3, 5)
        cancelling = (await client.post(f"/v1/batches/{batch['id']}/cancel")).json()
        assert cancelling["status"] == "cancelling"
        batch = await ended(client, batch["id"])
        assert batch["status"] == "cancelled"
        assert batch["request_counts"] == {"total": 50, "completed": 1, "failed": 0}
        assert [item["custom_id"] for item in await content(client, batch["output_file_id"])] == ["r0"]
        assert engine.running == 0
        assert_error(await client.post(f"/v1/batches/{batch['id']}/cancel"), 400, "invalid_request")
        engine.is_stuck = False
        again = await ended(client, (await begin(client, jsonl(line("a"))))["id"])
        assert again["status"] == "completed", "the slots of cancelled requests are free again"


async def test_expiry(opened: Opened) -> None:
    async with opened(Stuck()) as client:
        batch = await begin(client, jsonl(*(line(f"r{n}") for n in range(6))), completion_window="1s")
        batch = await ended(client, batch["id"])
        assert batch["status"] == "expired"
        assert batch["request_counts"] == {"total": 6, "completed": 1, "failed": 5}
        errors = await content(client, batch["error_file_id"])
        assert {item["error"]["code"] for item in errors} == {"batch_expired"}
        assert {item["custom_id"] for item in errors} == {f"r{n}" for n in range(1, 6)}


async def test_a_batch_goes_on_after_a_stop(opened: Opened, eventually: Any) -> None:
    slow = FakeEngine(behaviour=FakeBehaviour(reply="x", first_chunk_delay_s=0.05))
    async with opened(slow, batch_concurrency=1) as client:
        batch = await begin(client, jsonl(*(line(f"r{n}") for n in range(20))))
        await eventually(lambda: slow.finished >= 3, 5)
        stored = batch["input_file_id"]
        assert (await client.delete(f"/v1/files/{stored}")).status_code == 200
    fast = FakeEngine(behaviour=FakeBehaviour(reply="x"))
    async with opened(fast) as client:
        batch = await ended(client, batch["id"])
        output = await content(client, batch["output_file_id"])
    assert batch["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
    assert sorted(item["custom_id"] for item in output) == sorted(f"r{n}" for n in range(20))
    assert fast.finished + slow.finished == 20


def test_a_line_that_was_cut_is_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "output.jsonl"
    journal = Journal(path)
    journal.add({"custom_id": "a"})
    journal.add({"custom_id": "b"})
    journal.close()
    with path.open("ab") as file:
        file.write(b'{"custom_id": "c", "resp')
    again = Journal(path)
    assert again.custom_ids == {"a", "b"}
    again.add({"custom_id": "c"})
    again.close()
    assert [json.loads(raw)["custom_id"] for raw in path.read_text().splitlines()] == ["a", "b", "c"]


async def test_files_go_in_time(tmp_path: Path) -> None:
    now = 1000.0
    folder = DataFolder(tmp_path / "data")
    folder.open()
    files = FileStore(folder, ttl_s=100, max_bytes=1000, clock=lambda: now)
    kept = await files.create(io.BytesIO(b"a"), "a", "batch")
    short = await files.create(io.BytesIO(b"b"), "b", "batch", expires_after_s=50)
    (folder.files / "file-0.data").write_bytes(b"half an upload")
    now = 1060.0
    with pytest.raises(GatewayError):
        files.get(short.id)
    assert [stored.id for stored in files.list()] == [kept.id]
    files.sweep()
    again = FileStore(folder, ttl_s=100, max_bytes=1000, clock=lambda: now)
    again.load()
    assert sorted(path.stem for path in folder.files.glob("*.data")) == [kept.id]
    now = 1200.0
    again.sweep()
    assert not list(folder.files.iterdir())
    folder.close()
