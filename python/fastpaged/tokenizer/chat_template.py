"""Chat templates: Jinja programs out of model files, which are not trusted and therefore run in a sandbox.

Jinja is imported with the first template that is compiled, for start-up's sake.
"""

from __future__ import annotations

import datetime
import json
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from fastpaged.errors import InvalidRequestError
from fastpaged.tokenizer.chat_messages import ChatMessage, joined_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import jinja2

_PROBE = "fastpagedprobe"  # a text that no template has reason to change


class ChatTemplate:
    """One compiled template with the special tokens it may name."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Raises InvalidRequestError for a template that does not compile."""
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except Exception as error:
            raise _template_error(error) from error

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
        names: Mapping[str, Any] | None = None,
    ) -> str:
        """tools: descriptions, as the template wants them. names: whatever else it knows.

        Raises InvalidRequestError for whatever goes wrong in the template, its own raise_exception included.
        """
        plain = [dict(message) for message in messages]
        if any(isinstance(message.get("content"), (list, tuple)) for message in plain) and not self._takes_parts:
            plain = [{**message, "content": joined_text(message.get("content"))} for message in plain]
        return self._render(
            **{**self._special_tokens, "documents": None, **(names or {})},
            messages=plain,
            add_generation_prompt=add_generation_prompt,
            tools=None if tools is None else list(tools),
        )

    @cached_property
    def _takes_parts(self) -> bool:
        """Whether it looks into a content that is a list of parts, rather than printing the list, or failing on it."""
        message = {"role": "user", "content": [{"type": "text", "text": _PROBE}]}
        names = self._special_tokens | {"documents": None}
        try:
            text = self._render(**names, messages=[message], add_generation_prompt=False, tools=None)
        except InvalidRequestError:
            return False
        return _PROBE in text and repr(_PROBE) not in text and json.dumps(_PROBE) not in text

    def _render(self, **names: Any) -> str:
        try:
            return self._template.render(**names)
        except Exception as error:  # the template is somebody's program: any exception may come out of it
            raise _template_error(error) from error


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
