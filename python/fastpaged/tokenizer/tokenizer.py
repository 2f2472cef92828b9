"""The tokenizer of one model."""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fastpaged.errors import InvalidRequestError, ModelFormatError
from fastpaged.tokenizer.byte_alphabet import token_bytes
from fastpaged.tokenizer.chat_messages import (
    ChatMessage,
    check_messages,
    check_template_arguments,
    up_to_final_text,
)
from fastpaged.tokenizer.chat_template import ChatTemplate
from fastpaged.tokenizer.failures import library_failures
from fastpaged.tokenizer.text_stream import ByteLevelTextStream, TextStream, WindowTextStream

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fastpaged.tokenizer.definition import TokenizerDefinition

# What WindowTextStream can follow; "null" is no decoder, which joins tokens with spaces.
_WINDOW_DECODERS = frozenset(
    {"null", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace", "WordPiece", "BPEDecoder"}
)
LONG_TEXT = 4096  # characters: encoding them takes milliseconds, for which others are not to wait
_SHRINKING = 4  # times at most that normalisation makes a text shorter
_ANSWER = "fastpagedanswer"  # a message no template has reason to change


class Tokenizer:
    """Text to token ids and back. Immutable; safe to use from several threads."""

    def __init__(self, definition: TokenizerDefinition) -> None:
        self._definition = definition
        self._backend = definition.backend
        self._backend.encode_special_tokens = False
        added = self._backend.get_added_tokens_decoder()
        self._added_texts = {token_id: token.content for token_id, token in added.items()}
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._bytes_of_id: dict[int, bytes] = {}
        decoders = list(_decoder_kinds(self._backend.decoder))
        self._is_byte_level = decoders == ["ByteLevel"]
        self._has_byte_tokens = "ByteFallback" in decoders
        if not self._is_byte_level and not _WINDOW_DECODERS.issuperset(decoders):
            expected = f"ByteLevel, or some of {', '.join(sorted(_WINDOW_DECODERS))}"
            raise ModelFormatError(f"{definition.source}: decoder: expected {expected}, found {', '.join(decoders)}")

    # ---- ids and text

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`, in which special tokens may be spelled out.

        With add_special_tokens, the model's own frame (often a BOS) is put around it; a text that begins with the BOS
        token gets no second one.
        """
        if not isinstance(text, str):
            raise InvalidRequestError(f"text: expected a string, found {type(text).__name__} {text!r:.80}")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            found = f"a lone surrogate, U+{ord(text[error.start]):04X}, at {error.start}"
            raise InvalidRequestError(f"text: expected a string that UTF-8 can hold, found {found}") from None
        with library_failures(f"{self._definition.source}: encoding failed: "):
            if len(text) > LONG_TEXT:  # of several texts, even of one, it lets other threads run meanwhile
                ids = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
            else:
                ids = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        if add_special_tokens and self._adds_bos and ids[:2] == [self.bos_token_id] * 2:
            del ids[0]
        return ids

    def fewest_tokens(self, text: str) -> int:
        """At least so many tokens are in a text, which need not be encoded to be known as too long."""
        if self._is_byte_level:
            return len(text.encode("utf-8", "replace")) // self._longest_token
        return len(text) // (_SHRINKING * self._longest_token)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `token_ids`; bytes that are no UTF-8 come out as U+FFFD. Ids the tokenizer does not know (models
        pad their vocabularies) have no text."""
        with library_failures(f"{self._definition.source}: decoding failed: "):
            try:
                if len(token_ids) > LONG_TEXT:
                    return self._backend.decode_batch([token_ids], skip_special_tokens=skip_special_tokens)[0]
                return self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)
            except (TypeError, OverflowError):
                problem = f"token_ids: expected whole numbers from 0, found {token_ids!r:.80}"
        raise InvalidRequestError(problem)

    def token_text(self, token_id: int) -> str:
        """One token by itself, special ones included; part of a character comes out as U+FFFD."""
        return self.decode([token_id], skip_special_tokens=False)

    def token_bytes(self, token_id: int) -> bytes:
        """What one token adds to the text, be it part of a character."""
        if self._is_byte_level and token_id not in self._added_texts:
            return self._bytes_of(token_id)
        if self._is_byte(token_id):
            return bytes([int(str(self._token(token_id))[3:5], 16)])
        return self.token_text(token_id).encode("utf-8")

    def text_stream(self, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> TextStream:
        """The growing text of an answer to this prompt: text(prompt + output) less text(prompt)."""
        skipped = self._special_ids if skip_special_tokens else frozenset()
        if self._is_byte_level:
            return ByteLevelTextStream(
                prompt_token_ids, lambda token_id: b"" if token_id in skipped else self._bytes_of(token_id)
            )
        return WindowTextStream(
            prompt_token_ids,
            decode=lambda token_ids: self.decode(token_ids, skip_special_tokens=skip_special_tokens),
            is_visible=lambda token_id: token_id not in skipped and self._token(token_id) is not None,
            is_byte=self._is_byte,
        )

    # ---- the vocabulary

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest id."""
        return 1 + max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1)

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a sequence, if the model has one."""
        return self._definition.bos_token_id

    @cached_property
    def eos_token_ids(self) -> frozenset[int]:
        """Every token that ends an answer: those the files name, and the one the chat template ends turns with."""
        end_of_turn = self._end_of_turn()
        return self._definition.eos_token_ids | (frozenset() if end_of_turn is None else {end_of_turn})

    # ---- chat

    def apply_chat_template(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for a list of {"role", "content"}. Encode it with add_special_tokens=False: it has its own.

        add_generation_prompt: end with what an answer begins with. continue_final_message: end with the last message's
        text instead, for the answer to go on with. tools: descriptions, for templates that know them. chat_template:
        a Jinja source to use instead of the model's. chat_template_kwargs: more names for the template.

        Raises InvalidRequestError for messages of another form, for a model with no template, and for whatever the
        template itself objects to.
        """
        checked = check_messages(messages)
        if add_generation_prompt and continue_final_message:
            raise InvalidRequestError("add_generation_prompt must be False with continue_final_message=True, got True")
        template = self._template_for(chat_template, bool(tools))
        names = check_template_arguments(tools, chat_template_kwargs)
        text = template.render(checked, add_generation_prompt=add_generation_prompt, tools=tools, names=names)
        return up_to_final_text(text, checked[-1]) if continue_final_message else text

    def _template_for(self, source: str | None, with_tools: bool) -> ChatTemplate:
        if source is not None:
            if not isinstance(source, str):
                raise InvalidRequestError(f"chat_template must be None or a Jinja source, got {type(source).__name__}")
            return ChatTemplate(source, self._definition.special_tokens)
        if with_tools and "tool_use" in self._definition.chat_templates:
            return ChatTemplate(self._definition.chat_templates["tool_use"], self._definition.special_tokens)
        return self._chat_template

    @cached_property
    def _chat_template(self) -> ChatTemplate:
        templates = self._definition.chat_templates
        source = self._definition.source
        if not templates:
            raise InvalidRequestError(f"messages: {source} has no chat template; give a prompt instead")
        if "default" not in templates:
            found = f"found {', '.join(sorted(templates))}"
            raise InvalidRequestError(f"messages: {source} has no chat template named default; {found}")
        return ChatTemplate(templates["default"], self._definition.special_tokens)

    def _end_of_turn(self) -> int | None:
        """The added token that the template puts right after an assistant's message, if it does so."""
        if not self._definition.chat_templates:
            return None
        turn = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": _ANSWER}]
        try:
            text = self._chat_template.render(turn, add_generation_prompt=False)
        except InvalidRequestError:
            return None
        _, found, rest = text.rpartition(_ANSWER)
        rest = rest.lstrip() if found else ""
        ends = [token_id for token_id, text in self._added_texts.items() if text.strip() and rest.startswith(text)]
        return max(ends, key=lambda token_id: len(self._added_texts[token_id]), default=None)

    # ---- the insides

    @cached_property
    def _longest_token(self) -> int:
        """In characters of its name, each of which is a byte in byte-level vocabularies."""
        return max((len(self._token(token_id) or "") for token_id in range(self.vocab_size)), default=1)

    @cached_property
    def _adds_bos(self) -> bool:
        frame = self._backend.encode("", add_special_tokens=True).ids
        return self.bos_token_id is not None and frame[:1] == [self.bos_token_id]

    def _token(self, token_id: int) -> str | None:
        try:
            return self._backend.id_to_token(token_id)
        except (TypeError, OverflowError) as error:
            raise InvalidRequestError(f"token_id: expected a whole number from 0, found {token_id!r:.80}") from error

    def _bytes_of(self, token_id: int) -> bytes:
        known = self._bytes_of_id.get(token_id)
        if known is None:
            token = self._token(token_id)
            known = b"" if token is None else token_bytes(token)
            self._bytes_of_id[token_id] = known
        return known

    def _is_byte(self, token_id: int) -> bool:
        """A byte token, <0x00> to <0xFF>, of which the ByteFallback decoder makes characters."""
        token = self._token(token_id) if self._has_byte_tokens else None
        return token is not None and len(token) == 6 and token.startswith("<0x") and token.endswith(">")


def _decoder_kinds(decoder: Any) -> Iterator[str]:
    """The names of a decoder's steps, nested sequences laid out flat."""
    if decoder is None:
        yield "null"
        return
    pending = [json.loads(decoder.__getstate__())]
    while pending:
        step = pending.pop(0)
        if step["type"] == "Sequence":
            pending[:0] = step["decoders"]
        else:
            yield step["type"]
