from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tokenizer.small_tokenizers import trained_byte_level, write_gguf

from fastpaged.errors import InvalidRequestError
from fastpaged.tokenizer import Tokenizer, load_tokenizer
from fastpaged.tokenizer.chat_messages import check_messages
from fastpaged.tokenizer.chat_template import ChatTemplate

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


# ---- contents in parts, tools, and a last message to go on with

PARTS = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for m in messages %}[{{ m.content }}]{% endfor %}", "[a\nb]"),
        ("{% for m in messages %}{{ '<' + m['content'] + '>' }}{% endfor %}", "<a\nb>"),
        ("{% for m in messages %}{{ m.content | tojson }}{% endfor %}", '"a\\nb"'),
        ("{% for m in messages %}{% for p in m.content %}({{ p.text }}){% endfor %}{% endfor %}", "(a)(b)"),
        (
            "{% for m in messages %}{% if m.content is not string %}({{ m.content[0].text }}){% endif %}{% endfor %}",
            "(a)",
        ),
    ],
)
def test_parts_are_joined_by_lines_for_a_template_that_does_not_look_into_them(source: str, text: str) -> None:
    assert rendered(source, PARTS) == text


TURNS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)


def tokenizer_with(tmp_path: Path, template: str | None) -> Tokenizer:
    return load_tokenizer(write_gguf(tmp_path / "model.gguf", trained_byte_level(), chat_template=template))


@pytest.mark.parametrize(
    ("template", "last", "prompt"),
    [
        (TURNS, "The answer", "<u>Hi</><a>The answer"),
        (TURNS, " The answer ", "<u>Hi</><a> The answer "),
        (TURNS.replace("m.content", "m.content | trim"), " The answer ", "<u>Hi</><a>The answer"),
        (TURNS.replace("m.content", "m.content.lstrip()"), " The answer ", "<u>Hi</><a>The answer "),
        (TURNS, "Hi", "<u>Hi</><a>Hi"),
        (TURNS, [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}], "<u>Hi</><a>x\ny"),
    ],
)
def test_a_last_message_is_continued_right_behind_its_text(
    tmp_path: Path, template: str, last: object, prompt: str
) -> None:
    messages: list[dict[str, Any]] = [{"role": "u", "content": "Hi"}, {"role": "a", "content": last}]
    rendered = tokenizer_with(tmp_path, template).apply_chat_template(
        messages, add_generation_prompt=False, continue_final_message=True
    )
    assert rendered == prompt


@pytest.mark.parametrize(
    ("template", "last", "message"),
    [
        (TURNS.replace("m.content", "m.content | upper"), "yes", "the chat template changes the last one's text"),
        (TURNS, " ", "expected a last message with a text for continue_final_message, found ' '"),
    ],
)
def test_a_last_message_that_cannot_be_continued_says_why(
    tmp_path: Path, template: str, last: str, message: str
) -> None:
    tokenizer = tokenizer_with(tmp_path, template)
    with pytest.raises(InvalidRequestError, match=f"^messages: {message}"):
        tokenizer.apply_chat_template(
            [{"role": "a", "content": last}], add_generation_prompt=False, continue_final_message=True
        )


def test_an_answer_is_either_begun_or_continued(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidRequestError, match="add_generation_prompt must be False with continue_final_message=True"
    ):
        tokenizer_with(tmp_path, TURNS).apply_chat_template(MESSAGES, continue_final_message=True)


def test_tools_and_more_names_reach_the_template(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(tmp_path, "{{ tools[0].name }} {{ mood }} {{ documents }}")
    text = tokenizer.apply_chat_template(MESSAGES, tools=({"name": "clock"},), chat_template_kwargs={"mood": "calm"})
    assert text == "clock calm None"
    with_documents = tokenizer.apply_chat_template(
        MESSAGES, tools=[{"name": "clock"}], chat_template_kwargs={"documents": "d"}
    )
    assert with_documents == "clock  d"


def test_a_template_may_be_given_and_needs_none_in_the_model(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(tmp_path, None)
    assert tokenizer.apply_chat_template(MESSAGES, chat_template="{{ messages[0].content }}!") == "Hi!"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tools": "clock"}, "tools must be None or a list of dicts, got 'clock'"),
        ({"tools": ["clock"]}, "tools must be None or a list of dicts"),
        ({"chat_template": 7}, "chat_template must be None or a Jinja source, got int"),
        ({"chat_template": "{% for %}"}, "TemplateSyntaxError"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs must be None or a dict of names"),
        ({"chat_template_kwargs": {1: 2}}, "chat_template_kwargs must be None or a dict of names"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs must not hold 'tools'"),
    ],
)
def test_a_bad_argument_of_a_template_is_named(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        tokenizer_with(tmp_path, TURNS).apply_chat_template(MESSAGES, **arguments)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            [{"type": "image_url", "image_url": {}}],
            r"\['content'\]\[0\]: expected a part of type 'text' .* 'image_url'",
        ),
        ([{"type": "text"}], r"\['content'\]\[0\]\['text'\]: expected a string, found no such key"),
        (["text"], r"\['content'\]\[0\]: expected a part of type 'text' .* found str"),
        (None, r"\['content'\]: expected a string, found NoneType None"),
    ],
)
def test_a_content_of_another_kind_is_named_by_its_place(content: object, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^messages\[0\]" + message):
        check_messages([{"role": "user", "content": content}])


def test_a_message_with_tool_calls_needs_no_content() -> None:
    check_messages([{"role": "assistant", "content": None, "tool_calls": [{"function": {}}]}])
    check_messages([{"role": "assistant", "tool_calls": [{"function": {}}]}])
