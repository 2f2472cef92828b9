from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tokenizer.small_tokenizers import trained_byte_level, write_gguf

from fastpaged.errors import InvalidRequestError
from fastpaged.tokenizer import load_tokenizer
from fastpaged.tokenizer.chat_template import ChatTemplate, check_messages

if TYPE_CHECKING:
    from pathlib import Path

MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]


def rendered(source: str, messages: list[dict[str, Any]] = MESSAGES) -> str:
    return ChatTemplate(source, {"eos_token": "</s>"}).render(messages, add_generation_prompt=True)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ messages[0].content }}{{ eos_token }}{{ bos_token }}", "Hi</s>"),
        (
            "{% for m in messages %}\n  {% if m.role == 'user' %}\n{{ m['content'] }}\n  {% endif %}\n{% endfor %}",
            "Hi\n",
        ),
        ("{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.content }}{% endfor %}", "Hi"),
        ("{% if not tools and not documents and add_generation_prompt %}go{% endif %}", "go"),
        ("{% generation %}{{ messages[1].content }}{% endgeneration %}!", "Yo!"),
        ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "2"),
        ("{{ strftime_now('%%') }}", "%"),
    ],
)
def test_templates_have_what_templates_are_written_against(source: str, text: str) -> None:
    assert rendered(source) == text


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for %}", "TemplateSyntaxError"),
        ("{{ nobody.name }}", "UndefinedError: 'nobody' is undefined"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ 'a' + 1 }}", "TypeError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{% for i in range(10000000000) %}{% endfor %}", "OverflowError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{% include 'other' %}", "Error"),
    ],
)
def test_whatever_goes_wrong_in_a_template_is_the_requests_error(source: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=rf"messages: the model's chat template refused them: .*{message}"):
        rendered(source)


def test_a_template_cannot_change_the_callers_messages() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    with pytest.raises(InvalidRequestError, match="SecurityError"):
        rendered("{% set _ = messages[0].update(content='x') %}", messages)
    assert messages == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages: expected a non-empty list of messages, found an empty one"),
        ("Hi", "messages: expected a non-empty list of messages, found 'Hi'"),
        (None, "messages: expected a non-empty list of messages, found None"),
        (["Hi"], r"messages\[0\]: expected a dict with role and content, found str"),
        ([{"role": "user"}], r"messages\[0\]\['content'\]: expected a string, found no such key"),
        ([{"role": 1, "content": ""}], r"messages\[0\]\['role'\]: expected a string, found int 1"),
        (
            [*MESSAGES, {"role": "user", "content": None}],
            r"messages\[2\]\['content'\]: expected a string, found NoneType",
        ),
    ],
)
def test_messages_of_another_form_are_refused(messages: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        check_messages(messages)


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", trained_byte_level(), chat_template=None)
    with pytest.raises(InvalidRequestError, match=r"model\.gguf has no chat template; give a prompt instead"):
        load_tokenizer(path).apply_chat_template(MESSAGES)


def test_a_model_with_only_named_templates_says_which(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", trained_byte_level(), chat_template=None, chat_template__rag="x")
    with pytest.raises(InvalidRequestError, match="has no chat template named default; found rag"):
        load_tokenizer(path).apply_chat_template(MESSAGES)


def test_a_rendered_chat_is_encoded_as_it_stands(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_gguf(tmp_path / "model.gguf", trained_byte_level(), ggml__add_bos_token=True))
    text = tokenizer.apply_chat_template(MESSAGES[:1])
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids[0] == 1
    assert ids.count(1) == ids.count(2) + 1 == 2
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_jinja_is_not_loaded_before_a_chat() -> None:
    program = "import sys, fastpaged.tokenizer; print('jinja2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
