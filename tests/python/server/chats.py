"""What tests of /v1/chat/completions share: requests over HTTP, and the same ones in process."""

from __future__ import annotations

import json
from typing import Any

from server.completions import in_process, parsed
from server.serving import Running

from fastpaged import RequestOutput

PATH = "/v1/chat/completions"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "The cat"}]
BEGUN = [*MESSAGES, {"role": "assistant", "content": "It is"}]


def chat(server: Running, **body: Any) -> dict[str, Any]:
    response = server.client.post(PATH, json={"messages": MESSAGES, "max_tokens": 12} | body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def chat_events(server: Running, **body: Any) -> list[dict[str, Any]]:
    """Of a stream, without [DONE]."""
    whole = {"messages": MESSAGES, "max_tokens": 12, "stream": True} | body
    with server.client.stream("POST", PATH, json=whole) as response:
        assert response.status_code == 200, response.read()
        return list(parsed(response))


def refusal(server: Running, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
    """Its status and what is said of it."""
    response = server.client.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})
    error: dict[str, Any] = response.json()["error"]
    assert error["code"] == response.status_code
    return response.status_code, error


def rendered(server: Running, messages: list[dict[str, Any]], **arguments: Any) -> list[int]:
    """Token ids of the prompt that the model's template makes."""
    tokenizer = server.engine.get_tokenizer()
    return tokenizer.encode(tokenizer.apply_chat_template(messages, **arguments), add_special_tokens=False)


def chat_in_process(server: Running, messages: list[dict[str, Any]] = MESSAGES, **params: Any) -> RequestOutput:
    """The same engine's own answer."""
    return in_process(server, {"prompt_token_ids": rendered(server, messages)}, **{"max_tokens": 12} | params)


def added_up(events: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """What a reader of a stream has of each choice: its role, text, token ids, logprobs and last word."""
    found: dict[int, dict[str, Any]] = {}
    for event in events:
        for piece in event["choices"]:
            delta = piece["delta"]
            if piece["index"] not in found:
                assert set(delta) == {"role", "content"}  # the role comes first, and once
                found[piece["index"]] = {
                    "role": delta["role"],
                    "content": "",
                    "token_ids": [],
                    "logprobs": [],
                    "finish_reason": None,
                }
            else:
                assert set(delta) == {"content"}
            choice = found[piece["index"]]
            assert choice["finish_reason"] is None  # nothing comes behind the end
            choice["content"] += delta["content"]
            choice["token_ids"] += piece.get("token_ids", [])
            choice["logprobs"] += [] if piece["logprobs"] is None else piece["logprobs"]["content"]
            for name in ("finish_reason", "stop_reason", "seed"):
                choice[name] = piece.get(name)
    return found
