"""Text to token ids and back, with a safe way to tokenize text of which only parts may hold special tokens.

The safe way needs no guessing about borders. A second copy of the tokenizer knows each reserved token not by
its text but by a mark: a random string that nobody outside can write. Reserved tokens in trusted text are
replaced by their marks and the whole text is tokenized in one call, so that merges, prefix spaces and the
tokens' own white-space flags come out as they would for the plain text, while the text of a reserved token
that a user wrote is, to that copy, text like any other.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import tokenizers

from uzu_contract.errors import invalid
from uzu_native.model_folder import ModelFolder, ModelFolderError, read_text

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_PIPE_BRACKETED = re.compile(r"<[|｜].*[|｜]>", re.DOTALL)
_ELEMENT = re.compile(r"<(?P<close>/?)(?P<name>[^<>/]+)>")


@dataclass(frozen=True, slots=True)
class Piece:
    """A span of a prompt.

    Args:
        text: the span.
        trusted: whether reserved tokens written out in it are meant as tokens.

    """

    text: str
    trusted: bool


class Tokenizer:
    """A model's tokenizer. Safe to use from many threads.

    Args:
        tokenizer_file: path of tokenizer.json.
        bos_token: text of the beginning-of-sequence token.
        eos_token: text of the end-of-sequence token.
        adds_bos: whether texts begin with `bos_token`; None does as the tokenizer's post-processor does.
        chat_template: its text decides which tokens count as reserved, see `reserved_tokens`.
        make_nonce: source of the random part of the marks.

    Raises:
        ModelFolderError: the file is broken, or asks for a BOS token that it does not have.

    """

    def __init__(
        self,
        tokenizer_file: Path,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        adds_bos: bool | None = None,
        chat_template: str = "",
        make_nonce: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        source = read_text(tokenizer_file)
        self._plain = _build(tokenizer_file, source)
        added = self._plain.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        """Tokens that never appear in decoded text."""
        ids = {token.content: i for i, token in added.items()}
        texts = {
            token.content: token.special or token.content in (bos_token, eos_token)
            for token in added.values()
        }
        self.reserved_tokens: Mapping[str, int] = {
            text: ids[text] for text in sorted(reserved_tokens(texts, chat_template))
        }
        """Tokens that users' text must not be able to write, by their text."""
        self.reserved_pattern = _any_of(self.reserved_tokens)
        """Finds the texts of reserved tokens, the longest at each place."""
        self.bos_id = None if bos_token is None else self._plain.token_to_id(bos_token)
        self._prefix = self._find_prefix(tokenizer_file, adds_bos)
        description = json.loads(source)
        self.is_byte_level = _decoder_types(description) == ["ByteLevel"]
        """Whether decoding means joining the tokens' bytes."""
        self.byte_token_ids = (
            frozenset(i for text, i in self._plain.get_vocab().items() if _BYTE_TOKEN.fullmatch(text))
            if "ByteFallback" in _decoder_types(description)
            else frozenset()
        )
        """Tokens that stand for one byte of a character that has no token of its own."""
        nonce = make_nonce()
        self._marks = {text: f"\ue000{nonce}:{i}\ue001" for i, text in enumerate(self.reserved_tokens)}
        self._marked = self._plain
        if self._marks:
            self._mark(description)
            self._marked = _build(tokenizer_file, json.dumps(description, ensure_ascii=False))
        if any(self._marked.token_to_id(m) != self.reserved_tokens[text] for text, m in self._marks.items()):
            raise ModelFolderError(f"{tokenizer_file}: its added tokens have other ids than the file says")

    @classmethod
    def from_folder(cls, folder: ModelFolder) -> Tokenizer:
        """The tokenizer of a prepared model folder."""
        return cls(
            folder.tokenizer_path,
            bos_token=folder.bos_token,
            eos_token=folder.eos_token,
            adds_bos=folder.adds_bos,
            chat_template=(folder.chat_template or "") + (folder.tool_chat_template or ""),
        )

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included."""
        return int(self._plain.get_vocab_size(with_added_tokens=True))

    def encode_text(self, text: str, field: str = "text_input", *, add_bos: bool = True) -> list[int]:
        """Tokenize text that is trusted throughout; with `add_bos` it begins as this model's texts do.

        Raises:
            RequestError: the text holds half of a surrogate pair; it names `field`.

        """
        check_unicode(text, field)
        token_ids = list(self._plain.encode(text, add_special_tokens=False).ids)
        return self.with_bos(token_ids) if add_bos else token_ids

    def encode_pieces(self, pieces: Sequence[Piece], field: str = "messages") -> list[int]:
        """Tokenize the pieces as one text, but read reserved tokens only where a trusted piece holds them.

        A token that begins in one kind of piece and ends in the other is text. Nothing is put before it.

        Raises:
            RequestError: the text holds half of a surrogate pair; it names `field`.

        """
        parts = []
        for trusted, group in groupby(pieces, key=lambda piece: piece.trusted):
            text = "".join(piece.text for piece in group)
            parts.append(self.reserved_pattern.sub(self._mark_of, text) if trusted else text)
        text = "".join(parts)
        check_unicode(text, field)
        return list(self._marked.encode(text, add_special_tokens=False).ids)

    def with_bos(self, token_ids: list[int]) -> list[int]:
        """The tokens, with BOS before them if this model's texts begin so and these do not yet."""
        if not self._prefix or token_ids[: len(self._prefix)] == self._prefix:
            return token_ids
        return [*self._prefix, *token_ids]

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of tokens; ids that no token has are left out."""
        return str(self._plain.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    @property
    def longest_token(self) -> int:
        """Characters that the longest token can stand for, at most."""
        return max(map(len, self._plain.get_vocab(with_added_tokens=True)))

    def token_text(self, token_id: int) -> str | None:
        """How the vocabulary writes a token; None for an id that no token has."""
        return self._plain.id_to_token(token_id)

    def _mark_of(self, match: re.Match[str]) -> str:
        return self._marks[match[0]]

    def _find_prefix(self, path: Path, adds_bos: bool | None) -> list[int]:
        if adds_bos is None:
            bare = self._plain.encode("a", add_special_tokens=False).ids
            whole = self._plain.encode("a", add_special_tokens=True).ids
            starts = range(len(whole) - len(bare) + 1)
            return list(whole[: next((i for i in starts if whole[i : i + len(bare)] == bare), 0)])
        if not adds_bos:
            return []
        if self.bos_id is None:
            raise ModelFolderError(
                f"{path.parent}: add_bos_token is true but bos_token is no token of {path.name}: "
                "mend tokenizer_config.json"
            )
        return [self.bos_id]

    def _mark(self, description: dict[str, Any]) -> None:
        """Rename the reserved tokens to their marks, everywhere in a parsed tokenizer.json.

        They are renamed in the model's vocabulary too, since some models (Unigram) can find any entry of it
        in plain text, whether or not the entry is a special token.
        """
        for token in description["added_tokens"]:
            if token["content"] in self._marks:
                token["normalized"] = token["normalized"] and not self._is_changed(token["content"])
                token["single_word"] = False
                token["content"] = self._marks[token["content"]]
        model = description["model"]
        vocabulary = model["vocab"]
        if isinstance(vocabulary, dict):
            model["vocab"] = {self._marks.get(text, text): i for text, i in vocabulary.items()}
        else:
            model["vocab"] = [[self._marks.get(text, text), score] for text, score in vocabulary]
        if isinstance(model.get("unk_token"), str):
            model["unk_token"] = self._marks.get(model["unk_token"], model["unk_token"])
        if "merges" in model:
            pairs = (merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"])
            model["merges"] = [
                [left, right]
                for left, right in pairs
                if left not in self._marks and right not in self._marks and left + right not in self._marks
            ]

    def _is_changed(self, text: str) -> bool:
        normalizer = self._plain.normalizer
        written = (text, self._marks[text])
        return normalizer is not None and any(normalizer.normalize_str(t) != t for t in written)


def reserved_tokens(added: Mapping[str, bool], chat_template: str) -> frozenset[str]:
    """Which of the added tokens users' text must not be able to write.

    Those that are special, and those of the others that work as turn markers: written `<|…|>`, or written out
    in the chat template. Elements that open and close (`<think>` and `</think>`, `<tool_call>`) are left
    alone unless they are special: they come back in assistants' messages, where templates look for them.

    Args:
        added: text of each added token, and whether it is special.
        chat_template: Jinja source.

    """

    def is_element(text: str) -> bool:
        match = _ELEMENT.fullmatch(text)
        return match is not None and f"<{'' if match['close'] else '/'}{match['name']}>" in added

    return frozenset(
        text
        for text, special in added.items()
        if text.strip()
        and (special or _PIPE_BRACKETED.fullmatch(text) or (text in chat_template and not is_element(text)))
    )


def check_unicode(text: str, field: str) -> None:
    """Refuse text that no UTF-8 can hold.

    Raises:
        RequestError: it names `field`.

    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = f"U+{ord(text[error.start]):04X}"
        raise invalid(
            field, f"holds half of a surrogate pair ({code} at {error.start}); send whole characters"
        ) from None


def _build(path: Path, source: str) -> tokenizers.Tokenizer:
    try:
        tokenizer = tokenizers.Tokenizer.from_str(source)
    except Exception as error:  # the library raises nothing narrower
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelFolderError(
            f"{path} cannot be read as a tokenizer ({reason:.200}): prepare the model again"
        ) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _any_of(texts: Collection[str]) -> re.Pattern[str]:
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) if longest_first else r"(?!)")


def _decoder_types(description: Mapping[str, Any]) -> list[str]:
    decoder = description.get("decoder") or {}
    if decoder.get("type") == "Sequence":
        return [part["type"] for part in decoder["decoders"]]
    return [decoder["type"]] if decoder else []
