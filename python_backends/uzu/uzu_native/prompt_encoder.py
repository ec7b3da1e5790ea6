"""Any prompt to the token ids that the engine starts from."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from uzu_contract.errors import ErrorCode, RequestError, invalid
from uzu_contract.request import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from uzu_native.chat_template import ChatTemplate
from uzu_native.limits import prompt_too_long
from uzu_native.model_folder import ModelFolder
from uzu_native.tokenizer import Piece, Tokenizer


class PromptEncoder:
    """Owns a model's tokenizer and chat templates. Safe to use from many threads.

    Args:
        folder: the model.
        clock: what chat templates read as the present.

    Raises:
        ModelFolderError: the tokenizer or a template is broken.

    """

    def __init__(self, folder: ModelFolder, clock: Callable[[], datetime] = datetime.now) -> None:
        self.tokenizer = Tokenizer.from_folder(folder)
        self._vocab_size = folder.vocab_size
        self._longest_token = self.tokenizer.longest_token

        def compiled(text: str | None) -> ChatTemplate | None:
            if text is None:
                return None
            return ChatTemplate(
                text,
                folder.bos_token,
                folder.eos_token,
                reserved_tokens=self.tokenizer.reserved_tokens,
                clock=clock,
            )

        self._template = compiled(folder.chat_template)
        self._tool_template = compiled(folder.tool_chat_template)

    def check_size(self, prompt: Prompt, limit_tokens: int) -> None:
        """Refuse what is too long whatever its tokens are, before it is tokenized.

        Tokenizing megabytes holds up everything else in the process.

        Raises:
            RequestError: `CONTEXT_LENGTH_EXCEEDED`.

        """
        match prompt:
            case TextPrompt(text):
                characters = len(text)
            case TokenPrompt(token_ids):
                characters = len(token_ids) * self._longest_token
            case ChatPrompt(messages=messages):
                characters = sum(len(str(message.get("content", ""))) for message in messages)
        least = -(-characters // self._longest_token)
        if least > limit_tokens:
            raise prompt_too_long(f"at least {least}", limit_tokens)

    @property
    def has_chat_template(self) -> bool:
        """Whether the model takes messages."""
        return self._template is not None

    def encode(self, prompt: Prompt, add_special_tokens: bool = True) -> list[int]:
        """The prompt's tokens, at least one. Where the model's texts begin with BOS, exactly one is there.

        Token prompts are used as they are. Without `add_special_tokens` nothing is put before
        what the text or the template has.

        Raises:
            RequestError: no tokens, ids outside the vocabulary, text that is not Unicode, or messages that no
                template of the model takes.

        """
        match prompt:
            case TextPrompt(text):
                field = "text_input"
                token_ids = self.tokenizer.encode_text(text, field, add_bos=add_special_tokens)
            case TokenPrompt():
                field, token_ids = "input_ids", self._checked(prompt)
            case ChatPrompt():
                field, token_ids = "messages", self._encode_chat(prompt, add_special_tokens)
        if not token_ids:
            raise invalid(field, "must hold at least one token")
        return token_ids

    def encode_word(self, word: str) -> list[int]:
        """A word's tokens, nothing before them; reserved tokens may be written.

        Raises:
            RequestError: text that is not Unicode.

        """
        return self.tokenizer.encode_pieces([Piece(word, trusted=True)], "bad_words")

    def _checked(self, prompt: TokenPrompt) -> list[int]:
        for position, token_id in enumerate(prompt.token_ids):
            if not 0 <= token_id < self._vocab_size:
                raise invalid(
                    "input_ids",
                    f"token {token_id} at {position} is not in the vocabulary (0 to {self._vocab_size - 1})",
                )
        return list(prompt.token_ids)

    def _encode_chat(self, prompt: ChatPrompt, add_special_tokens: bool) -> list[int]:
        template = (self._tool_template if prompt.tools else None) or self._template
        if template is None:
            raise RequestError(
                ErrorCode.INVALID_REQUEST,
                "messages: this model has no chat template; send text_input (completions) instead",
                "messages",
            )
        token_ids = self.tokenizer.encode_pieces(template.render(prompt))
        return self.tokenizer.with_bos(token_ids) if add_special_tokens else token_ids

    def decode(self, prompt: TokenPrompt) -> str:
        """The text of tokens, special ones included.

        Raises:
            RequestError: an id outside the vocabulary.

        """
        return self.tokenizer.decode(self._checked(prompt), skip_special_tokens=False)

    def spell(self, token_ids: list[int]) -> tuple[str, ...]:
        """How the vocabulary writes each of the tokens."""
        return tuple(self.tokenizer.token_text(token_id) or "" for token_id in token_ids)
