"""Builds the tokenizer that a GGUF file describes, and the Hugging Face files that say the same.

A GGUF names its way of splitting text before BPE (`tokenizer.ggml.pre`); the patterns are those of the
models' own tokenizer.json, as llama.cpp's `llm_tokenizer_bpe` lists them. An unknown name is refused: a
guess would give almost the right tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from uzu.errors import UsageError
from uzu.gguf import GgufHeader

_CONTROL, _USER_DEFINED = 3, 4
_END_OF_TURN = frozenset(
    {"<|endoftext|>", "<|im_end|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>"}
)
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class _Splitting:
    """How text is split before BPE; `adds_bos` is the default of models that do not say."""

    pre_tokenizer: Callable[[], pre_tokenizers.PreTokenizer]
    ignore_merges: bool = False
    adds_bos: bool = False
    nfc: bool = False


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _digits_then_gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _by_regex(digits: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    return lambda: pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS % digits), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


_LLAMA3 = _Splitting(_by_regex("{1,3}"), ignore_merges=True, adds_bos=True)
_SPLITTINGS = {
    "gpt-2": _Splitting(_gpt2),
    "smollm": _Splitting(_digits_then_gpt2),
    "starcoder": _Splitting(_digits_then_gpt2),
    "refact": _Splitting(_digits_then_gpt2),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _Splitting(_by_regex(""), nfc=True),
}


def build_tokenizer(header: GgufHeader) -> Tokenizer:
    """The tokenizer of the file.

    Raises:
        UsageError: a kind of vocabulary or splitting that Uzu does not know, or inconsistent keys.

    """
    splitting = _splitting(header)
    tokens = header.strings("tokenizer.ggml.tokens")
    kinds = _token_kinds(header, tokens)
    merges = [tuple(merge.split(" ", 1)) for merge in header.strings("tokenizer.ggml.merges")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise UsageError(f"{header.path}: tokenizer.ggml.tokens holds the same token twice")
    try:
        tokenizer = Tokenizer(
            models.BPE(vocab=vocabulary, merges=merges, ignore_merges=splitting.ignore_merges)  # type: ignore[arg-type]
        )
    except Exception as error:  # the library raises nothing narrower
        raise UsageError(f"{header.path}: its vocabulary and merges disagree: {error}") from error
    if splitting.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = splitting.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    added = [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    tokenizer.add_special_tokens([token for token in added if token.special])
    tokenizer.add_tokens([token for token in added if not token.special])
    if adds_bos(header):
        bos = _token(header, "bos_token_id", tokens)
        if bos is not None:
            tokenizer.post_processor = processors.TemplateProcessing(
                single=f"{bos} $A", special_tokens=[(bos, vocabulary[bos])]
            )
    return tokenizer


def adds_bos(header: GgufHeader) -> bool:
    """Whether an encoded text begins with the beginning-of-sequence token."""
    said = header.keys.get("tokenizer.ggml.add_bos_token")
    return _splitting(header).adds_bos if said is None else bool(said)


def end_token_ids(header: GgufHeader) -> list[int]:
    """Ids that end a generation: the named ones first, then control tokens that end a turn or a text."""
    tokens = header.strings("tokenizer.ggml.tokens")
    kinds = _token_kinds(header, tokens)
    named = [header.keys.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    ends = [token_id for token_id in named if isinstance(token_id, int) and 0 <= token_id < len(tokens)]
    ends += [
        index
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind == _CONTROL and token in _END_OF_TURN
    ]
    return list(dict.fromkeys(ends))


def tokenizer_config(header: GgufHeader) -> dict[str, Any]:
    """The content of tokenizer_config.json."""
    tokens = header.strings("tokenizer.ggml.tokens")
    named = {
        "bos_token": _token(header, "bos_token_id", tokens),
        "eos_token": _token(header, "eos_token_id", tokens),
        "pad_token": _token(header, "padding_token_id", tokens),
        "unk_token": _token(header, "unknown_token_id", tokens),
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": adds_bos(header),
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        **{key: token for key, token in named.items() if token is not None},
    }


def _splitting(header: GgufHeader) -> _Splitting:
    kind = header.text("tokenizer.ggml.model")
    if kind != "gpt2":
        raise UsageError(
            f"{header.path}: its vocabulary is of kind {kind!r}; only byte-level BPE ('gpt2') can be "
            "prepared from GGUF: give an OpenVINO folder instead"
        )
    name = header.text("tokenizer.ggml.pre")
    if name not in _SPLITTINGS:
        raise UsageError(
            f"{header.path}: tokenizer.ggml.pre is {name!r}, which Uzu does not know (it knows "
            f"{', '.join(sorted(_SPLITTINGS))}): give an OpenVINO folder instead"
        )
    return _SPLITTINGS[name]


def _token_kinds(header: GgufHeader, tokens: list[str]) -> list[int]:
    kinds = header.keys.get("tokenizer.ggml.token_type")
    if not isinstance(kinds, list) or len(kinds) != len(tokens):
        raise UsageError(f"{header.path}: tokenizer.ggml.token_type does not match tokenizer.ggml.tokens")
    return kinds


def _token(header: GgufHeader, key: str, tokens: list[str]) -> str | None:
    token_id = header.keys.get(f"tokenizer.ggml.{key}")
    if token_id is None:
        return None
    if not isinstance(token_id, int) or not 0 <= token_id < len(tokens):
        raise UsageError(f"{header.path}: tokenizer.ggml.{key} is {token_id}, outside the vocabulary")
    return tokens[token_id]
