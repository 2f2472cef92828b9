"""Elsewhere: streams show U+FFFD, lose text, or begin with the whole prompt."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from server.serving import Running, running_server
from server.step_gate import inner

CHARACTERS = "aé漢🙂 \n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    from tiny_model import write_tiny_llama

    with running_server(write_tiny_llama(tmp_path_factory.mktemp("model"))) as running:
        yield running


def deltas(server: Running, path: str, body: dict[str, Any]) -> list[str]:
    found = []
    with server.client.stream("POST", path, json=body | {"stream": True}) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                [choice] = json.loads(line[6:])["choices"]
                found.append(choice["text"] if "text" in choice else choice["delta"].get("content", ""))
    return found


def byte_tokens(server: Running) -> dict[int, bytes]:
    """Tokens of single bytes that are no ASCII, by id: parts of characters."""
    tokenizer = inner(server).tokenizer
    found = {}
    for token_id in range(inner(server).worker.model_config.vocab_size):
        piece = tokenizer.token_bytes(token_id)
        if len(piece) == 1 and piece[0] >= 0x80 and tokenizer.token_text(token_id) == "\ufffd":
            found[token_id] = piece
    return found


@pytest.mark.parametrize("seed", range(12))
def test_behaviour_24_deltas_are_the_text_and_none_ends_in_half_a_character(server: Running, seed: int) -> None:
    """Answers of random bytes alone, after prompts that end in half a character."""
    rng = random.Random(seed)
    parts = byte_tokens(server)
    assert len(parts) > 60
    text = "".join(rng.choices(CHARACTERS, k=5)) + "漢"
    prompt = inner(server).tokenizer.encode(text)
    prompt = prompt[: len(prompt) - rng.randrange(3)]
    allowed = rng.sample(sorted(parts), 40) + prompt[:3]
    body = {"prompt": prompt, "allowed_token_ids": allowed, "seed": seed, "max_tokens": 40, "ignore_eos": True}
    whole = server.client.post("/v1/completions", json=body | {"return_token_ids": True}).json()["choices"][0]
    pieces = deltas(server, "/v1/completions", body)
    assert "".join(pieces) == whole["text"]
    decode = inner(server).tokenizer.decode
    skipped = decode(prompt).rstrip("\ufffd")
    assert decode(prompt + whole["token_ids"]).startswith(skipped)
    sofar = b""
    for piece in pieces:
        piece.encode("utf-8")  # no lone surrogate
        sofar += piece.encode()
    assert sofar.decode("utf-8") == whole["text"]
    assert not whole["text"].startswith(text)


@pytest.mark.parametrize("seed", range(6))
def test_behaviour_24_a_chat_s_deltas_are_its_text(server: Running, seed: int) -> None:
    allowed = sorted(byte_tokens(server))[:60]
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "漢字 🙂"}], "seed": seed, "max_tokens": 30}
    body |= {"allowed_token_ids": allowed, "ignore_eos": True}
    whole = server.client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
    assert "".join(deltas(server, "/v1/chat/completions", body)) == whole


@pytest.mark.parametrize("character", ["é", "漢", "🙂"])
def test_behaviour_24_a_character_of_several_tokens_comes_in_one_piece(server: Running, character: str) -> None:
    by_bytes = {piece: token_id for token_id, piece in byte_tokens(server).items()}
    data = character.encode()
    stream = inner(server).tokenizer.text_stream([])
    shown = [stream.push(by_bytes[bytes([byte])]) for byte in data]
    assert shown == [""] * (len(data) - 1) + [character]
