"""Small tokenizers of the kinds that language models have, and model folders around them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from uzu_contract.request import ChatPrompt

CORPUS = (
    "Once upon a time there was a user who asked the assistant: what is the capital of France?",
    "The capital of France is Paris. 1. first 2. second 3. third 42 1984",
    "def main():\n    return {'a': [1, 2], \"b\": None}\n\n\nif x < 3 and y > 4 | z: pass",
    "naïve café Übergröße 渦巻き 日本語 😀 👩‍👩‍👧 مرحبا  two  spaces\ttab",
) * 3

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Kind:
    """One kind of tokenizer, with the header and footer that a chat template would put around a message."""

    name: str
    source: str
    header: str
    footer: str
    bos_token: str | None = None
    reserved: frozenset[str] = field(default_factory=frozenset)

    @property
    def library(self) -> tokenizers.Tokenizer:
        """The `tokenizers` library on the same file, as the reference."""
        return tokenizers.Tokenizer.from_str(self.source)

    def write(self, folder: Path) -> Path:
        """Write tokenizer.json."""
        path = folder / "tokenizer.json"
        path.write_text(self.source, encoding="utf-8")
        return path


def special(content: str, **flags: bool) -> AddedToken:
    return AddedToken(content, special=True, normalized=False, **flags)


@cache
def byte_level() -> Kind:
    """GPT-2, Qwen, SmolLM2, Llama 3: bytes as letters."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=400,
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=[special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>")],
        ),
    )
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    tokenizer.add_tokens([AddedToken("<|User|>", normalized=False)])
    return Kind(
        "byte_level",
        tokenizer.to_str(),
        "<|im_start|>user\n",
        "<|im_end|>\n",
        reserved=frozenset({"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|User|>"}),
    )


def _sentencepiece_model() -> tuple[dict[str, int], list[tuple[str, str]]]:
    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=300, show_progress=False))
    learnt = json.loads(trained.to_str())["model"]
    # As converters from SentencePiece do, list every way to put a piece together, also those of `</s>`.
    merges = [tuple(pair) for pair in learnt["merges"]]
    merges += [("<", "/"), ("</", "s"), ("</s", ">")]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += [piece for piece in learnt["vocab"] if piece not in ("渦", "😀")]
    kept = dict.fromkeys([*pieces, "</", "</s", "/", "<", "s", ">"])
    vocabulary = {piece: i for i, piece in enumerate(kept)}
    return vocabulary, [m for m in merges if {*m, m[0] + m[1]} <= vocabulary.keys()]


def _llama(name: str, *, legacy: bool) -> Kind:
    vocabulary, merges = _sentencepiece_model()
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    if legacy:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([special("<unk>"), special("<s>"), special("</s>")])
    tokenizer.add_special_tokens([special("<|user|>", rstrip=True), special("<|end|>", rstrip=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", vocabulary["<s>"])]
    )
    return Kind(
        name,
        tokenizer.to_str(),
        "<s><|user|>\n",
        "<|end|>\n</s>",
        bos_token="<s>",
        reserved=frozenset({"<unk>", "<s>", "</s>", "<|user|>", "<|end|>"}),
    )


@cache
def llama_legacy() -> Kind:
    """Llama 2: a normalizer writes the prefix space, behind every special token too."""
    return _llama("llama_legacy", legacy=True)


@cache
def llama_metaspace() -> Kind:
    """Newer conversions: only the text's very beginning gets the prefix space."""
    return _llama("llama_metaspace", legacy=False)


@cache
def unigram() -> Kind:
    """T5's kind: the model finds every entry of its vocabulary in plain text, `</s>` too."""
    letters = sorted({letter for text in CORPUS for letter in text if letter != " "})
    pieces = [("<unk>", 0.0), ("</s>", -0.5), ("▁", -2.0), ("▁the", -3.0), ("▁of", -3.0)]
    pieces += [(letter, -5.0) for letter in letters]
    tokenizer = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.add_special_tokens([special("<unk>"), special("</s>"), special("<|turn|>")])
    return Kind(
        "unigram",
        tokenizer.to_str(),
        "<|turn|>user ",
        "</s>",
        reserved=frozenset({"<unk>", "</s>", "<|turn|>"}),
    )


KINDS = (byte_level, llama_legacy, llama_metaspace, unigram)

FRAGMENTS = (
    *(
        "<|im_start|>",
        "<|im_end|>",
        "<|im_",
        "end|>",
        "<|",
        "|>",
        "<",
        ">",
        "<s>",
        "</s>",
        "</",
        "s>",
        "<unk>",
    ),
    *("<|user|>", "<|end|>", "<|turn|>", "<think>", "</think>", "<0x0A>", "<|User|>"),
    *(
        " ",
        "  ",
        "\n",
        "\n\n",
        "\t",
        "1. ",
        "42",
        " the",
        "capital",
        "é",
        "渦",
        "😀",
        "👩‍👩‍👧",
        "\ue000",
        "▁",
        "\ufffd",
    ),
)

texts = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=6), max_size=8).map("".join)
"""Text that comes close to special tokens, white space of all kinds and characters without a token."""


def chat(*messages: tuple[str, str], **options: Any) -> ChatPrompt:
    """A chat prompt out of (role, content)."""
    return ChatPrompt(tuple({"role": role, "content": content} for role, content in messages), **options)


def write_folder(
    folder: Path,
    kind: Kind | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    tokenizer_config: Mapping[str, Any] | None = None,
    eos_token_id: int | Sequence[int] | None = None,
    template: str | None = None,
) -> Path:
    """A prepared model folder (with an empty graph, which the text layer does not read)."""
    kind = kind or byte_level()
    kind.write(folder)
    (folder / "openvino_model.xml").write_text("<net/>")
    (folder / "openvino_model.bin").write_bytes(b"")
    size = kind.library.get_vocab_size()
    (folder / "config.json").write_text(json.dumps({"vocab_size": size, **(config or {})}))
    defaults = {"bos_token": kind.bos_token}
    (folder / "tokenizer_config.json").write_text(json.dumps({**defaults, **(tokenizer_config or {})}))
    if eos_token_id is not None:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos_token_id}))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder
