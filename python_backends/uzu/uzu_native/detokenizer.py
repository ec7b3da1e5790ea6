"""Tokens to text as they come: whole characters only, and nothing of a stop string.

The concatenation of what `Detokenizer` hands out is exactly what decoding all tokens at once gives, up to the
stop string. The `tokenizers` library's own DecodeStream also gives that, but takes time that grows with the
square of a run of invalid bytes, which a model at a high temperature does produce.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from uzu_native.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"


class Detokenizer:
    """The text of one output.

    Args:
        tokenizer: the model's.
        stop: non-empty strings, before the first of which the text ends.

    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._skipped = tokenizer.special_ids
        self._stream: _TokenStream = (
            _ByteStream(tokenizer) if tokenizer.is_byte_level else _WindowStream(tokenizer)
        )
        self._matcher = StopMatcher(stop) if stop else None
        self._is_finished = False

    @property
    def stop_reason(self) -> str | None:
        """The stop string that ended the text; None until one did."""
        return self._matcher.matched if self._matcher else None

    def push(self, token_id: int) -> str:
        """Take the next token; returns the text that is certain now. After a stop it is always empty."""
        if self._is_finished or self.stop_reason is not None or token_id in self._skipped:
            return ""
        text = self._stream.push(token_id)
        return self._matcher.push(text) if self._matcher else text

    def finish(self) -> str:
        """The text that was held back, now that no token follows. It may still end at a stop string."""
        if self._is_finished or self.stop_reason is not None:
            return ""
        self._is_finished = True
        text = self._stream.flush()
        if self._matcher is None:
            return text
        text = self._matcher.push(text)
        return text + self._matcher.flush()


class TokenSpeller:
    """How single tokens are written inside a text, control tokens included.

    Args:
        tokenizer: the model's.

    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._anchor = tokenizer.encode_text("a")[-1:]
        self._anchor_text = tokenizer.decode(self._anchor)
        self._known: dict[int, bytes] = {}

    def token_bytes(self, token_id: int) -> bytes:
        """The token's bytes, empty for an id that no token has. They need not be whole characters."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._spell(token_id)
        return known

    def _spell(self, token_id: int) -> bytes:
        tokenizer = self._tokenizer
        text = tokenizer.token_text(token_id)
        if text is None:
            return b""
        if token_id in tokenizer.special_ids:
            return text.encode("utf-8")
        if tokenizer.is_byte_level:
            return _bytes_of(text)
        if token_id in tokenizer.byte_token_ids:
            return bytes([int(text[3:-1], 16)])
        # Behind another token, a decoder does not drop the space of a text's first word.
        whole = tokenizer.decode([*self._anchor, token_id])
        return whole.removeprefix(self._anchor_text).encode("utf-8")


class StopMatcher:
    """Cuts a text before the first stop string, handing out only what cannot belong to one.

    "First" is by where the string begins, so the cut does not depend on how the text arrives: a match waits
    while another stop string that began earlier may still be completed. Of two that begin at the same place
    the shorter wins. Each stop string is followed by the automaton of Knuth, Morris and Pratt (1977), so a
    character costs amortized constant time per stop string.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stops = tuple(dict.fromkeys(stop))
        self._failures = tuple(_failure_table(s) for s in self._stops)
        self._states = [0] * len(self._stops)
        self._held = ""
        self._found: tuple[int, int] | None = None
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Take more text; returns what is certain. Sets `matched` at a stop and ignores what follows."""
        if self.matched is not None:
            return ""
        read = len(self._held)
        self._held += text
        earliest = 0
        for position in range(read, len(self._held)):
            earliest = self._advance(self._held[position], position)
            if self._found is not None and self._found[0] <= earliest:
                return self.flush()
        if not text:
            return ""
        if self._found is not None:
            self._found = (self._found[0] - earliest, self._found[1])
        released, self._held = self._held[:earliest], self._held[earliest:]
        return released

    def flush(self) -> str:
        """What was held back, when nothing follows: up to the stop string if there is one."""
        end = len(self._held)
        if self._found is not None:
            end, stop_length = self._found
            self.matched = self._held[end : end + stop_length]
        released, self._held, self._found = self._held[:end], "", None
        return released

    def _advance(self, character: str, position: int) -> int:
        """Read one character; returns where the earliest unfinished match begins (else the next position)."""
        earliest = position + 1
        for i, stop in enumerate(self._stops):
            failures, state = self._failures[i], self._states[i]
            while state and stop[state] != character:
                state = failures[state - 1]
            if stop[state] == character:
                state += 1
            if state == len(stop):
                found = (position + 1 - state, state)
                self._found = found if self._found is None else min(self._found, found)
                state = failures[state - 1]
            self._states[i] = state
            earliest = min(earliest, position + 1 - state)
        return earliest


class _TokenStream(Protocol):
    def push(self, token_id: int) -> str: ...

    def flush(self) -> str: ...


class _ByteStream:
    """For byte-level vocabularies: every token is bytes, and the text is their UTF-8."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        text = self._tokenizer.token_text(token_id)
        return "" if text is None else self._decoder.decode(_bytes_of(text))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class _WindowStream:
    """For every other decoder: the library decodes the new tokens behind the last one whose text is out.

    That token stands for the whole text before it: what a decoder does at a text's beginning (dropping the
    space of the first word) then happens to it and not to the new tokens. A run of byte tokens is held until
    it ends, since decoders judge its validity as a whole.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []
        self._context_text = ""
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        if self._tokenizer.token_text(token_id) is None:
            return ""
        self._pending.append(token_id)
        if token_id in self._tokenizer.byte_token_ids:
            return ""
        whole = self._tokenizer.decode(self._context + self._pending)
        text = whole[len(self._context_text) :]
        if not text or text.endswith(REPLACEMENT) or not whole.startswith(self._context_text):
            return ""
        self._context, self._pending = [token_id], []
        self._context_text = self._tokenizer.decode(self._context)
        return text

    def flush(self) -> str:
        text = self._tokenizer.decode(self._context + self._pending)
        self._pending = []
        return text[len(self._context_text) :]


def _failure_table(pattern: str) -> list[int]:
    """For each prefix of the pattern, how long the longest proper prefix is that it also ends with."""
    table = [0] * len(pattern)
    length = 0
    for i in range(1, len(pattern)):
        while length and pattern[i] != pattern[length]:
            length = table[length - 1]
        if pattern[i] == pattern[length]:
            length += 1
        table[i] = length
    return table


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 stands for itself, the other bytes for U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


_BYTE_ALPHABET = _byte_alphabet()


@lru_cache(maxsize=65536)
def _bytes_of(token: str) -> bytes:
    try:
        return bytes([_BYTE_ALPHABET[c] for c in token])
    except KeyError:
        return token.encode("utf-8")
