"""Options of the native engine: the JSON object in a model's `1/model.json`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from uzu_native.errors import OptionsError
from uzu_native.machine_share import parse_cpu_set

MOST_THREADS = 16
"""As a default."""


def _option(
    default: Any,
    description: str,
    low: int | None = None,
    high: int | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    metadata = {"description": description, "range": (low, high), "choices": choices}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What may be set for a model. A field's description is in its metadata and in docs/configuration.md."""

    model: str = _option(
        MISSING, "prepared model folder; a relative path starts at the model's version folder"
    )
    source: str | None = _option(None, "where `uzu fetch` gets the model from; named when it is missing")
    context_tokens: int | None = _option(
        None, "longest prompt plus output, in tokens; default: what the model was trained for", 16, 1 << 24
    )
    kv_cache_tokens: int | None = _option(
        None,
        "KV cache size in tokens; default: up to eight full contexts, within a fifth of the free memory",
        64,
        1 << 30,
    )
    max_sequences: int = _option(64, "requests that run at the same time", 1, 4096)
    max_waiting: int = _option(1024, "requests that may wait; more are refused as overloaded", 0, 1 << 20)
    priority_step_ms: int = _option(
        1000,
        "head start of each step of priority: a request is overtaken by those that come that much later",
        0,
        3_600_000,
    )
    max_preemptions: int = _option(3, "how often a request may lose its blocks to higher priorities", 0, 1000)
    max_step_tokens: int = _option(512, "prompt tokens computed in one step", 16, 1 << 16)
    prefill_tokens_beside_decode: int = _option(
        16, "prompt tokens added to a step that also decodes: less is smoother streams", 4, 1 << 16
    )
    threads: int | None = _option(
        None,
        "threads of each instance; default: its part of the CPUs that this process may use, at most 16",
        1,
        256,
    )
    cpu_set: str | None = _option(
        None,
        'CPUs, as in "0-3,8", that the instances of the model share out and keep to; default: all, wherever '
        "there is time",
    )
    split_lanes: bool = _option(
        True,
        "compute prompts on half of the threads while others decode on the other half; takes the memory of "
        "the weights twice",
    )
    kv_cache_precision: str = _option(
        "u8",
        "of keys and values: u8 takes the least memory; bf16 and f16 twice as much, f32 four times",
        choices=("u8", "bf16", "f16", "f32"),
    )
    inference_precision: str = _option(
        "auto",
        "of the arithmetic: auto is bf16 where the CPU has it, else f32",
        choices=("auto", "f32"),
    )
    determinism: str = _option(
        "exact",
        "exact: a request's tokens do not depend on others, on chunks or on the cache; fast: they may, by "
        "rounding, which saves a little time when few requests run",
        choices=("exact", "fast"),
    )
    speculation: str = _option(
        "ngram",
        "ngram: guess tokens from the request's own text and verify them; draft: let `draft_model` guess; "
        "ngram+draft: whichever promises more; off",
        choices=("ngram", "draft", "ngram+draft", "off"),
    )
    speculation_tokens: int = _option(
        16, "longest guess by n-gram, in tokens; how long a guess is follows from what it earns", 1, 64
    )
    draft_model: str | None = _option(
        None,
        "prepared folder of a smaller model with the same tokenizer; a relative path starts as `model`'s",
    )
    draft_tokens: int = _option(
        5,
        "longest guess of the draft model, in tokens; it guesses less, or nothing, where that is faster",
        1,
        64,
    )
    sleep_after_s: int | None = _option(
        None,
        "seconds without a request after which weights and KV memory are given back until the next one; "
        "default: never",
        1,
        30 * 24 * 3600,
    )
    prefix_cache: bool = _option(True, "keep the KV blocks of prompts for later prompts that begin alike")
    reuse_generated: bool = _option(
        False,
        "keep the KV blocks of answers too, for chats that go on: saves time, but a follow-up's numbers may "
        "differ in the last bits from those computed afresh",
    )
    check_integrity: bool = _option(
        False,
        "check the books of requests and KV blocks whenever the last request has ended, and log a fault",
    )

    @property
    def thread_count(self) -> int:
        """`threads`, or its default for the only instance on this machine."""
        return self.threads or min(MOST_THREADS, len(os.sched_getaffinity(0)))

    @property
    def lanes_are_split(self) -> bool:
        """Whether there are halves: one thread cannot be shared out."""
        return self.split_lanes and self.thread_count > 1

    @property
    def drafts_by_model(self) -> bool:
        """Whether a draft model is wanted."""
        return self.speculation in ("draft", "ngram+draft")

    @property
    def drafts_by_ngram(self) -> bool:
        """Whether a request's own text is guessed from."""
        return self.speculation in ("ngram", "ngram+draft")


def parse_options(raw: Mapping[str, object]) -> EngineOptions:
    """Decode a JSON object strictly.

    Raises:
        OptionsError: unknown key, missing `model`, wrong type, value out of range, no list of CPUs, or
            options that do not go together.
    """
    known = {f.name: f for f in fields(EngineOptions)}
    for name in raw:
        if name not in known:
            raise OptionsError(f"unknown option {name!r}; known: {', '.join(sorted(known))}")
    for name, option in known.items():
        if name not in raw and option.default is MISSING:
            raise OptionsError(f"option {name!r} is missing")
    for name, value in raw.items():
        _check(name, str(known[name].type), known[name].metadata, value)
    if raw.get("kv_cache_precision") == "f32" and raw.get("inference_precision") != "f32":
        raise OptionsError("option 'kv_cache_precision' f32 needs inference_precision f32 as well")
    if isinstance(cpu_set := raw.get("cpu_set"), str):
        parse_cpu_set(cpu_set)
    options = EngineOptions(**dict(raw))  # type: ignore[arg-type]
    if options.drafts_by_model and not options.draft_model:
        raise OptionsError(f"option 'speculation' is {options.speculation!r}: name a 'draft_model'")
    if options.reuse_generated and not options.prefix_cache:
        raise OptionsError("option 'reuse_generated' needs 'prefix_cache'")
    return options


def load_options(path: Path) -> EngineOptions:
    """Options from a file.

    Raises:
        OptionsError: the file cannot be read or parsed, or what `parse_options` raises, with the path.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OptionsError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(raw, dict):
        raise OptionsError(f"{path}: must hold a JSON object")
    try:
        return parse_options(raw)
    except OptionsError as error:
        raise OptionsError(f"{path}: {error}") from None


def _check(name: str, annotation: str, metadata: Mapping[str, Any], value: object) -> None:
    if value is None and "None" in annotation:
        return
    kind: type = {"str": str, "int": int, "bool": bool}[annotation.split(" ")[0]]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise OptionsError(f"option {name!r} must be {annotation.replace('None', 'null')}, not {value!r:.60}")
    if metadata["choices"] and value not in metadata["choices"]:
        raise OptionsError(f"option {name!r} must be {' or '.join(metadata['choices'])}, not {value!r:.60}")
    low, high = metadata["range"]
    if isinstance(value, int) and low is not None and high is not None and not low <= value <= high:
        raise OptionsError(f"option {name!r} must be between {low} and {high}, not {value}")
