"""Chat prompts to text, keeping apart what the template wrote and what users wrote.

A template may cut, join and test users' text as it likes, so its output alone does not say where a
`<|im_end|>` came from. Before rendering, each character of a reserved token that stands in users' text is
therefore followed by a *guard*: a private-use character that occurs nowhere in the request. It survives
whatever the template does, and afterwards every guarded character becomes an untrusted piece.

Text that holds no whole reserved token needs no guards, so templates see it unchanged. But a template could
still put one together out of users' fragments (by taking out what lies between them, or by writing `<` in
front of a name). So when users' text holds characters of that kind (`<`, `|`, …), the template is rendered
once more with all of them guarded. If that output has other reserved tokens, they came from users, and
that output is the one taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime
from typing import Any

import jinja2

from uzu_contract.errors import ErrorCode, RequestError, invalid
from uzu_contract.request import ChatPrompt
from uzu_native.model_folder import ModelFolderError
from uzu_native.template_sandbox import TemplateSandbox
from uzu_native.tokenizer import Piece, check_unicode

OWN_VARIABLES = frozenset(
    {
        "add_generation_prompt",
        "bos_token",
        "continue_final_message",
        "eos_token",
        "messages",
        "raise_exception",
        "strftime_now",
        "tools",
    }
)
"""What `chat_template_kwargs` may not set."""

_PRIVATE_USE = (*range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE))
_JSON_ESCAPE = re.compile(r"\\u([0-9A-Fa-f]{4})")
_STRIPPED_SPACE = "\u2003"
_MAX_MESSAGE = 500


class ChatTemplate:
    """A model's chat template. Safe to use from many threads.

    Args:
        template_text: Jinja source.
        bos_token: what the template may write as `bos_token`.
        eos_token: what it may write as `eos_token`.
        reserved_tokens: texts that users must not be able to turn into tokens.
        clock: what the template's `strftime_now` reads.

    Raises:
        ModelFolderError: the source is not Jinja.

    """

    def __init__(
        self,
        template_text: str,
        bos_token: str | None = None,
        eos_token: str | None = None,
        *,
        reserved_tokens: Collection[str] = (),
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._sandbox = TemplateSandbox(clock)
        try:
            self._template = self._sandbox.from_string(template_text)
        except jinja2.TemplateSyntaxError as error:
            raise ModelFolderError(
                f"the chat template is broken at line {error.lineno} ({error.message}): "
                "mend chat_template.jinja or the chat_template in tokenizer_config.json"
            ) from None
        except (RecursionError, SyntaxError, ValueError, OverflowError):
            raise ModelFolderError("the chat template cannot be compiled: mend chat_template.jinja") from None
        self._template_text = template_text
        self._special_variables = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        longest_first = sorted(reserved_tokens, key=len, reverse=True)
        self._reserved = _alternatives(map(re.escape, longest_first))
        fragments = {c for token in reserved_tokens for c in token if not (c.isalnum() or c in "_ ")}
        self._fragment = _alternatives(map(re.escape, sorted(fragments)))

    def render(self, prompt: ChatPrompt) -> list[Piece]:
        """The prompt's text. Reserved tokens in the trusted pieces, and only these, are the template's own.

        Raises:
            RequestError: the template refuses the messages or fails on them, or the request has a variable
                that is not its to set or text that is not Unicode.

        """
        for name in prompt.chat_template_kwargs:
            if name in OWN_VARIABLES:
                raise invalid("chat_template_kwargs", f"may not set {name!r:.60}")
        try:
            return self._render(_with_parsed_arguments(prompt))
        except RecursionError:
            raise invalid("messages", "are nested too deeply") from None

    def _render(self, prompt: ChatPrompt) -> list[Piece]:
        fields: dict[str, Any] = {
            "messages": prompt.messages,
            "tools": prompt.tools,
            "chat_template_kwargs": prompt.chat_template_kwargs,
        }
        texts = []
        for name, value in fields.items():
            for where, text in _texts_in(value, name):
                check_unicode(text, where)
                texts.append(text)
        guard, end = _pick_unused([self._template_text, *texts])
        text = self._run(prompt, lambda t: self._reserved.sub(lambda m: _guarded(m[0], guard), t), guard, end)
        if any(self._fragment.search(t) for t in texts):
            strict = self._run(
                prompt, lambda t: self._fragment.sub(lambda m: _guarded(m[0], guard), t), guard, end
            )
            if self._reserved.findall(strict) != self._reserved.findall(text):
                text = strict
        return _cut(text, guard)

    def _run(self, prompt: ChatPrompt, guarded: Callable[[str], str], guard: str, end: str) -> str:
        """Render with `guarded` applied to every text of the request."""
        messages = _map_texts(prompt.messages, guarded)
        if prompt.continue_final_message:
            final = messages[-1]
            messages = [*messages[:-1], {**final, "content": f"{final['content']}{end}{_STRIPPED_SPACE}"}]
        variables = {
            **self._special_variables,
            "documents": None,
            **_map_texts(prompt.chat_template_kwargs, guarded),
            "messages": messages,
            "tools": _map_texts(prompt.tools, guarded) or None,
            "add_generation_prompt": prompt.add_generation_prompt,
            "continue_final_message": prompt.continue_final_message,
        }
        try:
            text = self._sandbox.render(self._template, variables)
        except RecursionError:
            raise
        except Exception as error:  # a template can raise anything that its operations can
            message = _unescaped(str(error), guard).replace(guard, "").replace(end, "").strip()
            raise RequestError(
                ErrorCode.INVALID_REQUEST,
                f"messages: the model's chat template refuses them: {message[:_MAX_MESSAGE]}",
                "messages",
            ) from None
        text = _unescaped(text, guard)
        return _up_to_final_content(text, end) if prompt.continue_final_message else text


def _up_to_final_content(text: str, end: str) -> str:
    """The text up to the end of the last message, which `end` and a space mark.

    A template that strips its messages has taken that space, and the message's own with it only if they came
    after the mark: those before it go here.
    """
    before, found, after = text.rpartition(end)
    if not found:
        raise invalid(
            "continue_final_message", "the model's chat template leaves out the end of the last message"
        )
    return before if after.startswith(_STRIPPED_SPACE) else before.rstrip()


def _with_parsed_arguments(prompt: ChatPrompt) -> ChatPrompt:
    """The prompt with the arguments of tool calls as objects: templates write them as JSON themselves."""
    if not any(message.get("tool_calls") for message in prompt.messages):
        return prompt
    messages = []
    for i, message in enumerate(prompt.messages):
        calls = message.get("tool_calls")
        if calls:
            where = f"messages[{i}].tool_calls"
            if not isinstance(calls, list | tuple) or not all(isinstance(call, Mapping) for call in calls):
                raise invalid(where, "must be a list of objects")
            message = {
                **message,
                "tool_calls": [_parsed_call(call, f"{where}[{j}]") for j, call in enumerate(calls)],
            }
        messages.append(message)
    return ChatPrompt(
        messages=tuple(messages),
        tools=prompt.tools,
        chat_template_kwargs=prompt.chat_template_kwargs,
        add_generation_prompt=prompt.add_generation_prompt,
        continue_final_message=prompt.continue_final_message,
    )


def _parsed_call(call: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise invalid(f"{where}.function.arguments", "must be the text of a JSON object")
    return {**call, "function": {**function, "arguments": arguments}}


def _texts_in(value: object, where: str) -> Iterator[tuple[str, str]]:
    """Every text in a JSON value, keys included, with where it stands."""
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield where, str(key)
            yield from _texts_in(item, f"{where}.{key:.40}")
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _texts_in(item, f"{where}[{i}]")


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A deep copy of a JSON value with every text changed, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(str(key)): _map_texts(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map_texts(item, change) for item in value]
    return value


def _pick_unused(texts: list[str]) -> tuple[str, str]:
    """Two private-use characters that occur in none of the texts, nor as a JSON escape."""
    used: set[str] = set()
    for text in texts:
        if not text.isascii():
            used.update(text)
        if "\\u" in text:
            used.update(chr(int(code, 16)) for code in _JSON_ESCAPE.findall(text))
    unused = (chr(code) for code in _PRIVATE_USE if chr(code) not in used)
    try:
        return next(unused), next(unused)
    except StopIteration:
        raise invalid("messages", "use every private-use character of Unicode") from None


def _guarded(text: str, guard: str) -> str:
    return "".join(character + guard for character in text)


def _unescaped(text: str, guard: str) -> str:
    """The text with guards as characters where a template escaped them for JSON."""
    return text.replace(json.dumps(guard)[1:-1], guard)


def _cut(text: str, guard: str) -> list[Piece]:
    """Pieces of a rendered text: guarded characters are untrusted, everything else is trusted."""
    pieces: list[Piece] = []
    pattern = re.compile(f"((?:[^{guard}]{guard})+)", re.DOTALL)
    for i, part in enumerate(pattern.split(text)):
        cleaned = part.replace(guard, "")
        if cleaned:
            pieces.append(Piece(cleaned, trusted=i % 2 == 0))
    return pieces


def _alternatives(patterns: Iterator[str]) -> re.Pattern[str]:
    return re.compile("|".join(patterns) or r"(?!)")
