"""Loads a draft model, and makes sure that its token ids mean what the target's mean."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from uzu_native.draft_model import DraftModel
from uzu_native.executor import Executor
from uzu_native.model_folder import ModelFolder, ModelFolderError, read_text
from uzu_native.openvino_executor import OpenVinoExecutor
from uzu_native.openvino_graph import Precision
from uzu_native.step_costs import StepCosts

DRAFT_CONTEXTS = 2
"""Full contexts in the draft model's pool. It is off under load, so it needs no room for a crowd."""


def load_draft_model(
    folder: ModelFolder,
    threads: int,
    target_executor: Executor,
    context_tokens: int,
    measure: Callable[[Executor], StepCosts],
    on_fault: Callable[[BaseException], None],
) -> DraftModel:
    """Load a draft model beside a target that is loaded.

    Args:
        folder: the draft model's, which `check_same_tokenizer` has seen.
        threads: of the target.
        target_executor: what that runs on.
        context_tokens: of the target.
        measure: says what steps cost.
        on_fault: told of its first failure.

    Raises:
        ModelLoadError: the graph cannot be run, or does not fit the memory.
    """
    context = min(context_tokens, folder.context_length or context_tokens)
    target_tokens = target_executor.block_count * target_executor.block_size
    executor = OpenVinoExecutor(
        folder.ir_path,
        threads=threads,
        split=False,
        precision=Precision(exact=False),
        context_tokens=context,
        kv_cache_tokens=min(target_tokens, DRAFT_CONTEXTS * context),
    )
    return DraftModel(executor, measure(executor), target_executor.vocabulary_size, context, on_fault)


def check_same_tokenizer(target: ModelFolder, draft: ModelFolder) -> None:
    """See that both models have the same tokens under the same ids, and split text alike.

    Raises:
        ModelFolderError: they do not.
    """
    if draft.vocab_size != target.vocab_size:
        raise ModelFolderError(
            f"draft_model {draft.path}: its vocabulary has {draft.vocab_size} tokens, and that of "
            f"{target.path} has {target.vocab_size}: choose a draft model of the same family"
        )
    ours, theirs = (_tokenizer(folder.tokenizer_path) for folder in (target, draft))
    for part in ("model", "added_tokens", "normalizer", "pre_tokenizer"):
        if ours.get(part) != theirs.get(part):
            raise ModelFolderError(
                f"draft_model {draft.path}: {part!r} in its {draft.tokenizer_path.name} is not that of "
                f"{target.path}: choose a draft model of the same family"
            )


def _tokenizer(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_text(path))
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ModelFolderError(f"{path} is not a JSON object: prepare the model again")
    return value
