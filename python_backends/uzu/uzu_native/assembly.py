"""Puts the engine together from a model's options: the one place where all its parts meet."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from uzu_native.calibration import calibrate
from uzu_native.detokenizer import Detokenizer, TokenSpeller
from uzu_native.draft_assembly import check_same_tokenizer, load_draft_model
from uzu_native.engine import Engine
from uzu_native.errors import OptionsError
from uzu_native.executor import Executor
from uzu_native.guidance import GuideCompiler
from uzu_native.model_folder import ModelFolder, ModelFolderError, load_model_folder, read_text
from uzu_native.openvino_executor import OpenVinoExecutor
from uzu_native.openvino_graph import Precision
from uzu_native.options import EngineOptions
from uzu_native.prompt_encoder import PromptEncoder
from uzu_native.speculation import Speculator
from uzu_native.step_costs import StepCosts


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that can serve once its engine is started.

    Args:
        engine: not started yet.
        prompts: turns prompts into tokens.
        guides: makes guides for the requests that need one.
        summary: what was loaded, in one line for the log.
    """

    engine: Engine
    prompts: PromptEncoder
    guides: GuideCompiler
    summary: str


def _measure(executor: Executor) -> StepCosts:
    return calibrate(executor, monotonic)


def load_model(
    options: EngineOptions,
    base: Path,
    name: str,
    on_fault: Callable[[BaseException], None],
    instances: int = 1,
    measure: Callable[[Executor], StepCosts] = _measure,
) -> LoadedModel:
    """Load what `options.model` names.

    Args:
        options: of the engine.
        base: folder at which a relative path starts.
        name: the model's, for messages.
        on_fault: told of the engine's own faults.
        instances: of this model, which share the memory for KV caches.
        measure: says what steps cost: of this model, and then of its draft model.

    Raises:
        ModelFolderError: nothing is there, or nothing that can be served.
        ModelLoadError: the graph cannot be run, or does not fit the memory.
        OptionsError: an option that this model needs is missing.
    """
    path = base / options.model
    if options.source and not path.exists():
        raise ModelFolderError(f"{path} does not exist: fetch {options.source} with: uzu fetch {name}")
    folder = load_model_folder(path)
    draft_folder = None
    if options.drafts_by_model:
        draft_folder = load_model_folder(base / str(options.draft_model))
        check_same_tokenizer(folder, draft_folder)
    context = _context_tokens(options, folder)
    executor = OpenVinoExecutor(
        folder.ir_path,
        threads=options.thread_count,
        split=options.lanes_are_split,
        precision=Precision(
            options.determinism == "exact", options.kv_cache_precision, options.inference_precision
        ),
        context_tokens=context,
        kv_cache_tokens=options.kv_cache_tokens,
        instances=instances,
    )
    prompts = PromptEncoder(folder)
    speculator = None
    if options.speculation != "off":
        costs = measure(executor)
        draft_model = None
        if draft_folder is not None:
            threads = options.thread_count
            draft_model = load_draft_model(draft_folder, threads, executor, context, measure, on_fault)
        most = options.speculation_tokens if options.drafts_by_ngram else 0
        speculator = Speculator(costs, most, draft_model, options.draft_tokens)
    engine = Engine(
        executor,
        options,
        end_token_ids=folder.end_token_ids,
        context_tokens=context,
        make_text_stream=lambda stop: Detokenizer(prompts.tokenizer, stop),
        token_bytes=TokenSpeller(prompts.tokenizer).token_bytes,
        encode_word=prompts.encode_word,
        draw_seed=lambda: secrets.randbits(64),
        on_fault=on_fault,
        speculator=speculator,
    )
    summary = (
        f"{name}: context of {context} tokens, {options.thread_count} threads, KV cache of "
        f"{executor.block_count} blocks of {executor.block_size} tokens ({executor.kv_bytes >> 20} MiB), "
        f"speculation {options.speculation}"
    )
    tokenizer_json = read_text(folder.tokenizer_path)
    guides = GuideCompiler(tokenizer_json, folder.end_token_ids, executor.vocabulary_size)
    return LoadedModel(engine, prompts, guides, summary)


def _context_tokens(options: EngineOptions, folder: ModelFolder) -> int:
    if options.context_tokens is None and folder.context_length is None:
        raise OptionsError(f"{folder.path} does not say how long its context is: set context_tokens")
    return min(c for c in (options.context_tokens, folder.context_length) if c is not None)
