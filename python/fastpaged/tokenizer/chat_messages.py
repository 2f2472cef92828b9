"""The messages of a chat, checked, and the other things a chat template is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastpaged.errors import InvalidRequestError

ChatMessage = Mapping[str, Any]


def check_messages(messages: object) -> Sequence[ChatMessage]:
    """A non-empty list of {"role": str, "content": text}, where a text is a string or a list of parts, {"type": "text",
    "text": str}; other keys are handed to the template as they are. A message with tool_calls needs no content."""
    if not isinstance(messages, (list, tuple)) or not messages:
        found = "an empty one" if messages in ([], ()) else f"{messages!r:.80}"
        raise InvalidRequestError(f"messages: expected a non-empty list of messages, found {found}")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            expected = "a dict with role and content"
            raise InvalidRequestError(f"messages[{index}]: expected {expected}, found {type(message).__name__}")
        _check_string(f"messages[{index}]['role']", message, "role")
        content = message.get("content")
        if isinstance(content, (list, tuple)):
            for position, part in enumerate(content):
                _check_part(f"messages[{index}]['content'][{position}]", part)
        elif content is not None or not message.get("tool_calls"):
            _check_string(f"messages[{index}]['content']", message, "content")
    return messages


def joined_text(content: object) -> object:
    """A checked content as one string; parts are put on lines of their own."""
    return "\n".join(part["text"] for part in content) if isinstance(content, (list, tuple)) else content


def check_template_arguments(tools: object, names: object) -> dict[str, Any]:
    """The names for a template, checked as its tools are. Raises InvalidRequestError."""
    is_list = isinstance(tools, (list, tuple)) and all(isinstance(tool, Mapping) for tool in tools)
    if tools is not None and not is_list:
        raise InvalidRequestError(f"tools must be None or a list of dicts, got {tools!r:.80}")
    if names is None:
        return {}
    if not isinstance(names, Mapping) or not all(isinstance(name, str) for name in names):
        raise InvalidRequestError(f"chat_template_kwargs must be None or a dict of names, got {names!r:.80}")
    for name in ("messages", "add_generation_prompt", "tools"):
        if name in names:
            raise InvalidRequestError(f"chat_template_kwargs must not hold {name!r}, which is an argument of its own")
    return dict(names)


def up_to_final_text(prompt: str, message: ChatMessage) -> str:
    """What was rendered, without what the template puts behind the last message's text. A template may have stripped
    spaces around the text. Raises InvalidRequestError where the text is not there."""
    text = joined_text(message.get("content"))
    if not isinstance(text, str) or not text.strip():
        expected = "a last message with a text for continue_final_message"
        raise InvalidRequestError(f"messages: expected {expected}, found {text!r:.80}")
    begin = prompt.rfind(text.strip())
    if begin < 0:
        raise InvalidRequestError("messages: the chat template changes the last one's text: it cannot be continued")
    whole = begin - (len(text) - len(text.lstrip()))
    if whole >= 0 and prompt.startswith(text, whole):
        return prompt[: whole + len(text)]
    rest = text[len(text) - len(text.lstrip()) :]
    return prompt[: begin + (len(rest) if prompt.startswith(rest, begin) else len(text.strip()))]


def _check_part(where: str, part: object) -> None:
    if not isinstance(part, Mapping) or part.get("type") != "text":
        kind = f"of type {part.get('type')!r:.80}" if isinstance(part, Mapping) else type(part).__name__
        raise InvalidRequestError(f"{where}: expected a part of type 'text' (no model here sees more), found {kind}")
    _check_string(f"{where}['text']", part, "text")


def _check_string(where: str, holder: Mapping[str, object], key: str) -> None:
    if not isinstance(holder.get(key), str):
        found = f"{type(holder[key]).__name__} {holder[key]!r:.80}" if key in holder else "no such key"
        raise InvalidRequestError(f"{where}: expected a string, found {found}")
