"""Keeps a text to a form: which tokens may come next, by the llguidance library.

A guide is the parser of one request. It is made from the request's grammar before the engine sees the
request, lives with the sequence, and reads its tokens one by one, so a preemption or a wrong guess changes
nothing about it. A mask over a vocabulary of 49,152 takes about 0.1 ms; it is made right after a token was
taken, while the model computes the next one.
"""

from __future__ import annotations

import contextlib
import json
import re

import llguidance
import numpy as np
from numpy.typing import NDArray

from uzu_contract.errors import RequestError, invalid, unsupported
from uzu_contract.sampling import SamplingParams
from uzu_contract.structured import FIELD, OutputKind, StructuredOutputs

_LIMITS = llguidance.LLParserLimits(
    initial_lexer_fuel=200_000, step_lexer_fuel=50_000, step_max_items=20_000, verbose_errors=False
)
"""A fifth to a half of the library's own: a step of the model takes some 10 ms, and a mask must not."""

_WHITE_SPACE = r"[ \n\r\t]{1,64}"
"""Small models like to go on with white space for ever once they have begun."""

MAX_REASON_CHARACTERS = 300
_CONTEXT = re.compile(r"\s*\d+ \||\s*\^|<non-verbose/>")
"""Lines of the library's messages that quote the grammar."""


class GrammarGuide:
    """Where one text is in its grammar.

    Args:
        matcher: the library's parser, at the beginning of the text.
        field: the request's field that holds the grammar, for errors.
        vocabulary_size: width of the model's logits.
        shunned: end tokens that are allowed only where nothing else is.

    Raises:
        RequestError: no text matches, or the first token is too hard to find.

    """

    def __init__(
        self, matcher: llguidance.LLMatcher, field: str, vocabulary_size: int, shunned: frozenset[int]
    ) -> None:
        self._matcher = matcher
        self._field = field
        self._vocabulary_size = vocabulary_size
        self._shunned = np.array(sorted(shunned), np.int64)
        self._length = 0
        self._allowed: NDArray[np.int64] | None = None
        self.allowed()

    @property
    def is_complete(self) -> bool:
        """Whether the text matches and nothing can follow it."""
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def allowed(self) -> NDArray[np.int64]:
        """Ids of the tokens that may come next, in ascending order; at least one.

        Raises:
            RequestError: the grammar leads nowhere from here, or the parser reached a limit.

        """
        if self._allowed is None:
            mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            self._check()
            bits = np.unpackbits(mask, bitorder="little")[: self._vocabulary_size]
            allowed = np.flatnonzero(bits)
            if len(self._shunned):
                others = np.setdiff1d(allowed, self._shunned, assume_unique=True)
                allowed = others if len(others) else allowed
            if not len(allowed):
                raise invalid(self._field, "no token of the model can follow here")
            self._allowed = allowed
        return self._allowed

    def advance(self, token: int) -> None:
        """Read the next token of the text, one of those allowed.

        Raises:
            RequestError: the parser reached a limit.

        """
        self._allowed = None
        self._length += 1
        self._matcher.consume_token(token)
        self._check()

    def prepare(self) -> None:
        """Find out now which tokens may come next. What goes wrong is raised again by `allowed`."""
        if not self._matcher.is_stopped():
            with contextlib.suppress(RequestError):
                self.allowed()

    def _check(self) -> None:
        if self._matcher.is_error():
            where = f"token {self._length} of the text: " if self._length else ""
            raise invalid(self._field, where + _reason(self._matcher))


class GuideCompiler:
    """Makes guides for one model. Safe to use from many threads.

    Args:
        tokenizer_json: text of the model's tokenizer.json.
        end_token_ids: tokens that end a text.
        vocabulary_size: width of the model's logits.

    """

    def __init__(self, tokenizer_json: str, end_token_ids: frozenset[int], vocabulary_size: int) -> None:
        self._end_token_ids = end_token_ids
        self._vocabulary_size = vocabulary_size
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._reason = ""
        ends = sorted(token for token in end_token_ids if token < vocabulary_size)
        try:
            size = max(vocabulary_size, _highest_id(tokenizer_json) + 1)
            self._tokenizer = llguidance.LLTokenizer(tokenizer_json, n_vocab=size, eos_token=ends or None)
        except (ValueError, RuntimeError, KeyError) as error:
            self._reason = str(error)[:MAX_REASON_CHARACTERS]

    def compile(self, sampling: SamplingParams) -> GrammarGuide | None:
        """A guide for a request; None when any text will do.

        Raises:
            RequestError: the grammar is wrong, too large, or cannot be used with this model's tokenizer. It
                names the field, and has the library's reason.

        """
        wanted = sampling.structured_outputs
        if wanted is None:
            return None
        if self._tokenizer is None:
            raise unsupported(FIELD, f"is not possible with this model's tokenizer ({self._reason})")
        field = wanted.kind.path
        try:
            grammar = _grammar(wanted)
        except ValueError as error:
            raise invalid(field, str(error)[:MAX_REASON_CHARACTERS]) from None
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=_LIMITS)
        if matcher.is_error():
            raise invalid(field, _reason(matcher))
        shunned = self._end_token_ids if sampling.ignore_eos else frozenset[int]()
        return GrammarGuide(matcher, field, self._vocabulary_size, shunned)


def _grammar(wanted: StructuredOutputs) -> str:
    matcher = llguidance.LLMatcher
    match wanted.kind, wanted.source:
        case OutputKind.JSON, str(schema):
            return str(matcher.grammar_from_json_schema(schema, {"whitespace_pattern": _WHITE_SPACE}))
        case OutputKind.REGEX, str(pattern):
            # Makes `\d` mean 0 to 9, as in JSON schemas, and not the digits of all scripts.
            return str(matcher.grammar_from_lark(f"start: /{llguidance.regex_to_lark(pattern, 'd')}/"))
        case OutputKind.GRAMMAR, str(lark):
            return str(matcher.grammar_from_lark(lark))
        case OutputKind.CHOICE, choices:
            literals = (json.dumps(choice).replace("\x7f", "\\u007f") for choice in choices)
            return str(matcher.grammar_from_lark(f"start: {' | '.join(literals)}"))
    return str(matcher.grammar_from_json_schema('{"type":"object"}', {"whitespace_pattern": _WHITE_SPACE}))


def _reason(matcher: llguidance.LLMatcher) -> str:
    """The library's reason on one line, without its own state."""
    lines = [line for line in matcher.get_error().splitlines() if not _CONTEXT.match(line)]
    bad_regex = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    text = f"invalid regular expression: {bad_regex[-1]}" if bad_regex else " ".join(" ".join(lines).split())
    if text == "NoExtensionBias":
        text = "no text matches"
    return text if len(text) <= MAX_REASON_CHARACTERS else f"{text[: MAX_REASON_CHARACTERS - 3]}..."


def _highest_id(tokenizer_json: str) -> int:
    described = json.loads(tokenizer_json)
    vocabulary = described["model"]["vocab"]
    ids = [token["id"] for token in described.get("added_tokens", [])]
    ids += vocabulary.values() if isinstance(vocabulary, dict) else [len(vocabulary) - 1]
    return max(ids, default=0)
