"""Chat templates: Jinja programs out of model files, which are not trusted and therefore run in a sandbox.

Jinja is imported with the first template that is compiled, for start-up's sake.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from fastpaged.errors import InvalidRequestError

if TYPE_CHECKING:
    import jinja2

ChatMessage = Mapping[str, Any]


class ChatTemplate:
    """One compiled template with the special tokens it may name."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Raises InvalidRequestError for a template that does not compile."""
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except Exception as error:
            raise _template_error(error) from error

    def render(self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool) -> str:
        """Raises InvalidRequestError for whatever goes wrong in the template, its own raise_exception included."""
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._special_tokens,
            )
        except Exception as error:  # the template is somebody's program: any exception may come out of it
            raise _template_error(error) from error


def check_messages(messages: object) -> Sequence[ChatMessage]:
    """A non-empty list of {"role": str, "content": str}; other keys are handed to the template as they are."""
    if not isinstance(messages, (list, tuple)) or not messages:
        found = "an empty one" if messages in ([], ()) else f"{messages!r:.80}"
        raise InvalidRequestError(f"messages: expected a non-empty list of messages, found {found}")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            expected = "a dict with role and content"
            raise InvalidRequestError(f"messages[{index}]: expected {expected}, found {type(message).__name__}")
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                found = f"{type(message[key]).__name__} {message[key]!r:.80}" if key in message else "no such key"
                raise InvalidRequestError(f"messages[{index}][{key!r}]: expected a string, found {found}")
    return messages


def _template_error(error: Exception) -> InvalidRequestError:
    return InvalidRequestError(f"messages: the model's chat template refused them: {type(error).__name__}: {error}")


def _environment() -> jinja2.Environment:
    """What the templates of the field are written against: whitespace rules, loop controls and a few helpers."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _generation_extension()]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _generation_extension() -> type[jinja2.ext.Extension]:
    """{% generation %} marks an assistant's words for training; in a prompt it is only its body."""
    import jinja2.ext

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}  # noqa: RUF012 - how Jinja spells it

        def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return Generation


def _raise_exception(message: str) -> NoReturn:
    import jinja2

    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which no prompt wants.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
