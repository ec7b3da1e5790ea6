import threading
import time
from dataclasses import replace

from uzu_contract.errors import ErrorCode, RequestError
from uzu_contract.logprobs import PromptLogprobs, ScoredToken, TokenLogprobs
from uzu_contract.response import FinishReason, GenerateChunk
from uzu_native.delivery import Delivery, join_chunks


class Port:
    """A client that can be slow, leave, or break."""

    def __init__(self) -> None:
        self.sent: list[object] = []
        self.gone = False
        self.broken = False
        self.may_send = threading.Event()
        self.may_send.set()
        self.final = threading.Event()

    def send_chunk(self, chunk, final):
        self.may_send.wait(5)
        if self.broken:
            raise OSError("broken pipe")
        self.sent.append(chunk)
        if final:
            self.final.set()

    def send_error(self, error):
        self.sent.append(error)
        self.final.set()

    def send_end(self):
        self.sent.append("end")
        self.final.set()

    def is_cancelled(self):
        return self.gone


class Harness:
    def __init__(self) -> None:
        self.cancelled: list[int] = []
        self.was_cancelled = threading.Event()
        self.faults: list[BaseException] = []
        self.delivery = Delivery(self._cancel, self.faults.append, poll_interval_s=0.005)
        self.delivery.start()

    def _cancel(self, ticket: int) -> None:
        self.cancelled.append(ticket)
        self.was_cancelled.set()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.delivery.stop()


def chunk(text, finish=None):
    return GenerateChunk(text=text, token_ids=(len(text),), finish_reason=finish, num_input_tokens=3)


def test_chunks_join_without_loss():
    joined = join_chunks([chunk("a"), chunk("bc"), chunk("d", FinishReason.STOP)])
    assert (joined.text, joined.token_ids, joined.finish_reason) == ("abcd", (1, 2, 1), FinishReason.STOP)


def test_logprobs_join_with_their_tokens():
    places = [TokenLogprobs(ScoredToken(i, b"x", -0.5, 1)) for i in range(3)]
    chunks = [GenerateChunk(text="x", token_ids=(i,), logprobs=(place,)) for i, place in enumerate(places)]
    assert join_chunks(chunks).logprobs == tuple(places)
    assert join_chunks([chunk("a"), chunk("b")]).logprobs is None
    prompt = PromptLogprobs(5, b"p", tuple(places))
    chunks[0] = replace(chunks[0], prompt_logprobs=prompt)
    assert join_chunks(chunks).prompt_logprobs == prompt
    assert join_chunks(chunks[1:]).prompt_logprobs is None


def test_a_client_that_falls_behind_gets_joined_chunks():
    with Harness() as harness:
        port = Port()
        port.may_send.clear()
        responder = harness.delivery.open(port)
        for letter in "abcdefgh":
            responder.on_chunk(chunk(letter))
        responder.on_chunk(chunk("!", FinishReason.LENGTH))
        port.may_send.set()
        assert port.final.wait(5)
    assert "".join(c.text for c in port.sent) == "abcdefgh!"
    assert len(port.sent) <= 3
    assert port.sent[-1].finish_reason is FinishReason.LENGTH


def test_a_client_that_leaves_cancels_its_request_once():
    with Harness() as harness:
        port = Port()
        responder = harness.delivery.open(port)
        responder.ticket = 42
        port.gone = True
        assert harness.was_cancelled.wait(5)
        assert port.final.wait(5)
        responder.on_chunk(chunk("late", FinishReason.STOP))
    assert harness.cancelled == [42]
    assert port.sent == ["end"]


def test_an_error_is_the_final_response():
    with Harness() as harness:
        port = Port()
        responder = harness.delivery.open(port)
        error = RequestError(ErrorCode.OVERLOADED, "full")
        responder.on_error(error)
        assert port.final.wait(5)
    assert port.sent == [error]


def test_nothing_is_asked_of_a_client_while_sending_or_after_the_end():
    """Triton crashes when is_cancelled meets the final response."""

    class Strict(Port):
        def __init__(self) -> None:
            super().__init__()
            self.busy = threading.Lock()
            self.asked = 0
            self.broken_rules: list[str] = []

        def send_chunk(self, chunk, final):
            if not self.busy.acquire(blocking=False):
                self.broken_rules.append("sent while asked")
                return
            time.sleep(0.003)
            super().send_chunk(chunk, final)
            self.busy.release()

        def is_cancelled(self):
            self.asked += 1
            if self.final.is_set():
                self.broken_rules.append("asked after the end")
            if not self.busy.acquire(blocking=False):
                self.broken_rules.append("asked while sending")
                return False
            time.sleep(0.003)
            self.busy.release()
            return False

    with Harness() as harness:
        ports = [Strict() for _ in range(8)]
        responders = [harness.delivery.open(port) for port in ports]
        for number, responder in enumerate(responders):
            responder.ticket = number
        for text in "abcde":
            time.sleep(0.03)
            for responder in responders:
                responder.on_chunk(chunk(text, FinishReason.STOP if text == "e" else None))
        assert all(port.final.wait(5) for port in ports)
        time.sleep(0.1)
    assert sum(port.asked for port in ports) > 8
    assert [rule for port in ports for rule in port.broken_rules] == []


def test_one_broken_client_does_not_stop_the_others():
    with Harness() as harness:
        broken, fine = Port(), Port()
        broken.broken = True
        harness.delivery.open(broken).on_chunk(chunk("x"))
        harness.delivery.open(fine).on_chunk(chunk("y", FinishReason.STOP))
        assert fine.final.wait(5)
    assert [type(f) for f in harness.faults] == [OSError]
