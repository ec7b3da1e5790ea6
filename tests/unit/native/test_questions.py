"""Questions about tokens, which need no engine."""

import pytest
from text_fixtures import CHATML, byte_level, chat, llama_legacy, write_folder

from uzu_contract.errors import ErrorCode, RequestError
from uzu_contract.request import GenerateRequest, Operation, TextPrompt, TokenPrompt
from uzu_native.model_folder import load_model_folder
from uzu_native.prompt_encoder import PromptEncoder
from uzu_native.questions import OPERATIONS, answer_question

CONTEXT = 64


def ask(folder, prompt, operation, *args, special=True, **options):
    folder.mkdir(exist_ok=True)
    prompts = PromptEncoder(load_model_folder(write_folder(folder, *args, **options)))
    request = GenerateRequest(prompt=prompt, operation=operation, add_special_tokens=special)
    return answer_question(request, prompts, CONTEXT), prompts


def test_tokenize(tmp_path):
    answer, prompts = ask(tmp_path, TextPrompt("the capital"), Operation.TOKENIZE, template=CHATML)
    assert list(answer.token_ids) == byte_level().library.encode("the capital").ids
    assert answer.num_input_tokens == len(answer.token_ids) > 0
    assert answer.details.tokens == prompts.spell(list(answer.token_ids))
    assert "".join(answer.details.tokens).replace("\u0120", " ") == "the capital"
    assert (answer.details.context_tokens, answer.details.operations) == (CONTEXT, OPERATIONS)


def test_messages_are_what_a_generation_begins_with(tmp_path):
    prompt = chat(("user", "the capital"))
    answer, prompts = ask(tmp_path, prompt, Operation.TOKENIZE, template=CHATML)
    assert list(answer.token_ids) == prompts.encode(prompt)
    assert answer.details.has_chat_template


def test_special_tokens_can_be_left_out(tmp_path):
    with_bos, prompts = ask(tmp_path / "a", TextPrompt("hello"), Operation.TOKENIZE, llama_legacy())
    bare, _ = ask(tmp_path / "b", TextPrompt("hello"), Operation.TOKENIZE, llama_legacy(), special=False)
    assert list(with_bos.token_ids) == [prompts.tokenizer.bos_id, *bare.token_ids]


def test_detokenize_keeps_special_tokens(tmp_path):
    text = "<|im_start|>user\nthe capital<|im_end|>"
    ids = byte_level().library.encode(text).ids
    answer, _ = ask(tmp_path, TokenPrompt(tuple(ids)), Operation.DETOKENIZE)
    assert answer.text == text
    assert answer.finish_reason is not None
    assert answer.details.tokens is None


def test_describe(tmp_path):
    answer, _ = ask(tmp_path, TextPrompt(""), Operation.DESCRIBE)
    assert answer.token_ids == ()
    assert not answer.details.has_chat_template


@pytest.mark.parametrize(
    ("prompt", "operation", "code"),
    [
        (TokenPrompt((10**6,)), Operation.DETOKENIZE, ErrorCode.INVALID_PARAMETER),
        (TokenPrompt((1,) * (4 * CONTEXT + 1)), Operation.DETOKENIZE, ErrorCode.CONTEXT_LENGTH_EXCEEDED),
        (TextPrompt("a" * 10**6), Operation.TOKENIZE, ErrorCode.CONTEXT_LENGTH_EXCEEDED),
        (chat(("user", "x")), Operation.TOKENIZE, ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_is_refused(tmp_path, prompt, operation, code):
    with pytest.raises(RequestError) as raised:
        ask(tmp_path, prompt, operation)
    assert raised.value.code == code


def test_what_is_longer_than_the_context_is_counted(tmp_path):
    answer, _ = ask(tmp_path, TextPrompt("the capital " * 60), Operation.TOKENIZE)
    assert answer.num_input_tokens > CONTEXT
