"""Answers to requests that need the tokenizer but no engine: tokenize, detokenize, describe."""

from __future__ import annotations

from uzu_contract.request import GenerateRequest, Operation, TokenPrompt
from uzu_contract.response import FinishReason, GenerateChunk, ModelDetails
from uzu_native.prompt_encoder import PromptEncoder

_LONGEST_IN_CONTEXTS = 4
OPERATIONS = tuple(operation.value for operation in Operation)


def answer_question(request: GenerateRequest, prompts: PromptEncoder, context_tokens: int) -> GenerateChunk:
    """The one response to a request whose operation is not `generate`.

    What is tokenized may be longer than the context: knowing by how much is what one asks for. It may not
    be so long that tokenizing it would hold up everything else.

    Raises:
        RequestError: as `PromptEncoder` raises it.

    """
    text, token_ids, spelled = "", [], None
    if request.operation is Operation.TOKENIZE:
        prompts.check_size(request.prompt, _LONGEST_IN_CONTEXTS * context_tokens)
        token_ids = prompts.encode(request.prompt, request.add_special_tokens)
        spelled = prompts.spell(token_ids)
    elif request.operation is Operation.DETOKENIZE and isinstance(request.prompt, TokenPrompt):
        prompts.check_size(request.prompt, _LONGEST_IN_CONTEXTS * context_tokens)
        text = prompts.decode(request.prompt)
    return GenerateChunk(
        text=text,
        token_ids=tuple(token_ids),
        finish_reason=FinishReason.STOP,
        num_input_tokens=len(token_ids),
        details=ModelDetails(
            context_tokens=context_tokens,
            operations=OPERATIONS,
            has_chat_template=prompts.has_chat_template,
            tokens=spelled,
        ),
    )
