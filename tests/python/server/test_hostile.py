"""What nobody means well by: each is refused, and a stream beside it is what it is on a quiet day."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from server.serving import Running, running_server

from fastpaged import InvalidRequestError
from fastpaged.server.errors import ApiError
from fastpaged.server.request_body import check_json
from fastpaged.server.settings import ServerSettings

JSON = {"Content-Type": "application/json"}
STREAM: dict[str, Any] = {"prompt": [5, 6, 7], "max_tokens": 60, "ignore_eos": True, "seed": 3, "stream": True}


def text_of(url: str) -> str:
    with httpx.stream("POST", f"{url}/v1/completions", json=STREAM, timeout=60) as response:
        lines = [line[6:] for line in response.iter_lines() if line.startswith("data: {")]
    return "".join(json.loads(line)["choices"][0]["text"] for line in lines)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    from tiny_model import write_tiny_llama

    with running_server(write_tiny_llama(tmp_path_factory.mktemp("model"))) as running:
        yield running


def prompt(**fields: Any) -> bytes:
    return json.dumps({"prompt": "x", **fields}).encode()


BODIES: dict[str, tuple[bytes, int]] = {
    "nothing": (b"", 400),
    "no JSON": (b"what", 400),
    "half of it": (b'{"prompt": ', 400),
    "no object": (b"[1, 2]", 400),
    "NaN": (b'{"prompt": "x", "temperature": NaN}', 400),
    "an infinity": (b'{"prompt": "x", "temperature": -Infinity}', 400),
    "a number beyond all": (b'{"prompt": "x", "temperature": 1e999}', 400),
    "a whole number of many digits": (b'{"prompt": "x", "n": ' + b"9" * 5000 + b"}", 400),
    "no UTF-8": (b'{"prompt": "\xff"}', 400),
    "a lone surrogate": (b'{"prompt": "\\ud800"}', 400),
    "a surrogate for a model": (b'{"prompt": "x", "model": "\\ud800"}', 404),
    "brackets by the hundred thousand": (b"[" * 100_000, 400),
    "a deep object": (b'{"a":' * 70 + b"1" + b"}" * 70, 400),
    "a string without end, and its backslashes": (b"[" * 65 + b'"' + b'\\"' * 500_000 + b"\\", 400),
    "n": (prompt(n=10**30), 400),
    "a stop string of a megabyte": (prompt(stop=["a" * 10**6]), 400),
    "stop strings": (prompt(stop=[f"a{number}" for number in range(100_000)]), 400),
    "bad words": (prompt(bad_words=[f"a{number}" for number in range(100_000)]), 400),
    "biases": (prompt(logit_bias={str(number): 1.0 for number in range(100_000)}), 400),
    "a token id beyond all": (prompt(prompt=[10**25]), 400),
    "prompts": (prompt(prompt=["a"] * 10_000), 400),
    "a null byte for an id": (prompt(request_id="a\0b"), 400),
    "types": (prompt(temperature="hot", n=[1], stop={"a": 1}, stream=7), 400),
    "too many bytes": (b'{"prompt": "' + b"a" * (3 << 20) + b'"}', 413),
}


@pytest.mark.parametrize("what", BODIES)
def test_a_hostile_body_is_refused_in_the_usual_shape(server: Running, what: str) -> None:
    body, status = BODIES[what]
    response = server.client.post("/v1/completions", content=body, headers=JSON)
    assert response.status_code == status, response.text[:500]
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_a_stream_beside_all_of_them_is_what_it_is_alone(server: Running) -> None:
    alone = text_of(server.url)
    with httpx.stream("POST", f"{server.url}/v1/completions", json=STREAM, timeout=60) as response:
        for body, status in BODIES.values():
            answer = server.client.post("/v1/completions", content=body, headers=JSON)
            assert answer.status_code == status
        lines = [line[6:] for line in response.iter_lines() if line.startswith("data: {")]
    assert "".join(json.loads(line)["choices"][0]["text"] for line in lines) == alone


@pytest.mark.parametrize("headers", [{"Content-Type": "text/plain"}, {}, {**JSON, "Content-Encoding": "gzip"}])
def test_what_is_not_said_to_be_json_is_not_read(server: Running, headers: dict[str, str]) -> None:
    response = server.client.post("/v1/completions", content=b'{"prompt": "x"}', headers=headers)
    assert response.status_code in (400, 415)


def depth_of(text: str) -> int:
    """The obvious way."""
    depth = deepest = 0
    in_string = escaped = False
    for character in text:
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = in_string
        elif character == '"':
            in_string = not in_string
        elif not in_string:
            depth += (character in "[{") - (character in "]}")
            deepest = max(deepest, depth)
    return deepest


def random_value(rng: random.Random, depth: int) -> Any:
    kind = rng.random()
    if depth == 0 or kind < 0.3:
        return "".join(rng.choices('[]{}"\\a,: ', k=rng.randrange(8)))
    if kind < 0.65:
        return [random_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {f'"{number}\\': random_value(rng, depth - 1) for number in range(rng.randrange(4))}


@pytest.mark.parametrize("seed", range(20))
def test_depth_is_counted_outside_of_strings(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        text = json.dumps(random_value(rng, 6))
        depth = depth_of(text)
        check_json(text.encode(), max(1, depth))
        if depth > 1:
            with pytest.raises(ApiError, match="levels deep"):
                check_json(text.encode(), depth - 1)


# ---- who may ask


def test_a_key_guards_every_route_but_health(tiny_llama: Path) -> None:
    with running_server(tiny_llama, ServerSettings(api_keys=("one", "two"))) as server:
        described = server.client.get("/openapi.json", headers={"Authorization": "Bearer one"}).json()
        paths: dict[str, Any] = described["paths"]
        assert len(paths) > 12
        asked = [(method, path) for path in paths for method in paths[path]]
        for method, path in [*asked, ("get", "/docs"), ("get", "/openapi.json"), ("get", "/nothing")]:
            answer = server.client.request(method, path.replace("{prefix_id}", "1").replace("{name}", "x"))
            if path == "/health":
                assert answer.status_code == 200
            else:
                assert (answer.status_code, answer.json()) == (401, {"error": "Unauthorized"}), path
                assert answer.headers["www-authenticate"] == "Bearer"
        for given, status in (("Bearer two", 200), ("bearer one", 200), ("Bearer on", 401), ("one", 401)):
            assert server.client.get("/v1/models", headers={"Authorization": given}).status_code == status, given


def test_pages_read_answers_only_where_their_origin_is_named(tiny_llama: Path) -> None:
    origin = {"Origin": "https://page.example"}
    with running_server(tiny_llama) as server:
        assert "access-control-allow-origin" not in server.client.get("/v1/models", headers=origin).headers
    with running_server(tiny_llama, ServerSettings(allowed_origins=("https://page.example",))) as server:
        allowed = server.client.get("/v1/models", headers=origin).headers["access-control-allow-origin"]
        assert allowed == "https://page.example"
        other = server.client.get("/v1/models", headers={"Origin": "https://other.example"})
        assert "access-control-allow-origin" not in other.headers


def test_without_docs_there_are_none(tiny_llama: Path) -> None:
    with running_server(tiny_llama, ServerSettings(enable_docs=False)) as server:
        assert [server.client.get(path).status_code for path in ("/docs", "/openapi.json")] == [404, 404]


# ---- settings

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"port": 70_000}, "port must be"),
    ({"max_body_bytes": 0}, "max_body_bytes must be"),
    ({"max_json_depth": 1000}, "max_json_depth must be"),
    ({"read_timeout": -1.0}, "read_timeout must be"),
    ({"shutdown_timeout": float("nan")}, "shutdown_timeout must be"),
    ({"api_keys": (" ",)}, r"api_keys\[0\] must be"),
    ({"served_model_names": ("",)}, r"served_model_names\[0\] must be"),
    ({"root_path": "api/"}, "root_path must be"),
    ({"ssl_keyfile": "/nowhere"}, "must be given together"),
    ({"ssl_keyfile": "/nowhere", "ssl_certfile": "/nowhere"}, "ssl_keyfile must be"),
    ({"uds": "/nowhere/at/all"}, "uds must be"),
    ({"metrics_compat": "tgi"}, "metrics_compat must be"),
]


@pytest.mark.parametrize(("fields", "words"), WRONG, ids=lambda value: str(value)[:40])
def test_settings_that_cannot_be_are_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        ServerSettings(**fields)
