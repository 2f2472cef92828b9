from __future__ import annotations

from pathlib import Path

from server.serving import running_server

from fastpaged.server.settings import ServerSettings


def test_the_model_is_listed_under_each_of_its_names(tiny_llama: Path) -> None:
    with running_server(tiny_llama, ServerSettings(served_model_names=("a", "b/c"))) as server:
        listed = server.client.get("/v1/models").json()
        assert [card["id"] for card in listed["data"]] == ["a", "b/c"]
        assert server.client.get("/v1/models/b/c").json() == listed["data"][1]
        missing = server.client.get("/v1/models/tiny")
        assert missing.status_code == 404
        assert missing.json()["error"]["type"] == "NotFoundError"
