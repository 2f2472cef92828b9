"""Fetching from a hub that runs on this machine, with the real huggingface_hub."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_model import tiny_config, tiny_weights, write_json, write_safetensors, write_tiny_llama
from weights.fake_hub import REVISION, TAGGED, FakeHub, files_of, running

from fastpaged.errors import ModelFormatError, ModelNotFoundError
from fastpaged.formats.safetensors_index import INDEX_NAME
from fastpaged.weights.checkpoint import open_checkpoint
from fastpaged.weights.hub import Hub, choose_weights

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
# What a repository may hold beside the model that is read; none of it may be asked for.
LEFT_ALONE = {
    "README.md": b"# tiny",
    "pytorch_model.bin": b"\x80\x04.",
    "original/consolidated.00.pth": b"\x80\x04.",
    "consolidated.safetensors": b"the same weights under other names",
    "modeling_tiny.py": b"raise SystemExit",
    "tokenizer.model": b"what tokenizer.json was made from",
    "onnx/model.onnx": b"",
    ".gitattributes": b"",
}
ONE_FILE = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    folder = write_tiny_llama(tmp_path_factory.mktemp("tiny"))
    whole = files_of(folder)
    weights = tiny_weights()
    names = sorted(weights)
    weight_map = {}
    for shard, mine in zip(SHARDS, (names[:5], names[5:]), strict=True):
        write_safetensors(folder / shard, {name: weights[name] for name in mine})
        weight_map.update(dict.fromkeys(mine, shard))
    write_json(folder / INDEX_NAME, {"weight_map": weight_map})
    (folder / "model.safetensors").unlink()
    mamba = whole | {"config.json": json.dumps(tiny_config() | {"architectures": ["MambaForCausalLM"]}).encode()}
    return {
        "org/tiny": whole | LEFT_ALONE,
        "org/older": {name: text for name, text in (whole | LEFT_ALONE).items() if name != "tokenizer.json"},
        "org/sharded": files_of(folder) | LEFT_ALONE,
        "org/mamba": mamba,
        "org/one-gguf": {"tiny.Q8_0.gguf": b"GGUF", "config.json": b"{}", "old/tiny.gguf": b""},
        "org/ggufs": {"tiny.Q8_0.gguf": b"8", "tiny.Q4_K.gguf": b"4", "README.md": b""},
        "org/pickles": {"config.json": b"{}", "pytorch_model.bin": b"\x80\x04."},
    }


@pytest.fixture
def server(repositories: dict[str, dict[str, bytes]]) -> Iterator[FakeHub]:
    with running(FakeHub(repositories)) as hub:
        yield hub


@pytest.fixture
def hub(server: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return Hub(server.endpoint, str(tmp_path / "cache"))


def test_a_repository_s_model_is_fetched_and_nothing_else(hub: Hub, server: FakeHub) -> None:
    folder = hub.fetch("org/tiny")
    assert sorted(server.fetched) == sorted(path.name for path in folder.iterdir()) == ONE_FILE
    assert files_of(folder) == {name: server.repositories["org/tiny"][name] for name in ONE_FILE}
    assert sorted(open_checkpoint(folder).tensor_names) == sorted(tiny_weights())


def test_without_tokenizer_json_what_it_is_made_of_is_fetched(hub: Hub, server: FakeHub) -> None:
    folder = hub.fetch("org/older")
    expected = sorted({*ONE_FILE, "tokenizer.model"} - {"tokenizer.json"})
    assert sorted(server.fetched) == sorted(path.name for path in folder.iterdir()) == expected


def test_of_a_model_in_several_files_those_of_the_index_are_fetched(hub: Hub, server: FakeHub) -> None:
    folder = hub.fetch("org/sharded")
    expected = sorted([*ONE_FILE, *SHARDS, INDEX_NAME])
    expected.remove("model.safetensors")
    assert sorted(server.fetched) == sorted(path.name for path in folder.iterdir()) == expected
    assert sorted(open_checkpoint(folder).tensor_names) == sorted(tiny_weights())


def test_what_was_fetched_is_not_fetched_again(hub: Hub, server: FakeHub) -> None:
    folder = hub.fetch("org/sharded")
    num_fetched = len(server.fetched)
    assert hub.fetch("org/sharded") == folder
    assert len(server.fetched) == num_fetched


def test_a_revision_is_fetched_beside_the_main_branch_and_found_again_without_the_hub(
    repositories: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    tagged = {"org/tiny": repositories["org/tiny"] | {"generation_config.json": b"{}"}}
    with running(FakeHub(repositories, tagged=tagged)) as server:
        hub = Hub(server.endpoint, str(tmp_path))
        main, old = hub.fetch("org/tiny"), hub.fetch("org/tiny", revision="v1")
        assert hub.fetch("org/tiny", revision=TAGGED) == old
    assert (main.name, old.name) == (REVISION, TAGGED)
    assert (old / "generation_config.json").read_bytes() == b"{}" != (main / "generation_config.json").read_bytes()
    assert (hub.fetch("org/tiny"), hub.fetch("org/tiny", revision="v1")) == (main, old)
    with pytest.raises(Exception, match="(?i)refused"):
        hub.fetch("org/tiny", revision="v2")


def test_what_lies_beside_the_weights_may_be_fetched_alone(
    repositories: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    with running(FakeHub(repositories)) as server:
        hub = Hub(server.endpoint, str(tmp_path))
        folder = hub.fetch_small("org/sharded")
        assert sorted(server.fetched) == [name for name in ONE_FILE if name != "model.safetensors"]
        server.fetched.clear()
        older = hub.fetch_small("org/older")
        assert (older / "tokenizer.model").exists() and not (older / "tokenizer.json").exists()
        assert "model.safetensors" not in server.fetched
    assert hub.fetch_small("org/sharded") == folder
    with pytest.raises(Exception, match="(?i)refused"):
        hub.fetch_small("org/tiny")


@pytest.mark.parametrize(("token", "sent"), [("hf_abc", {"Bearer hf_abc"}), (False, {None})])
def test_a_token_is_sent_or_none_at_all(
    token: str | bool, sent: set[str | None], server: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_environment")
    hub = Hub(server.endpoint, str(tmp_path / "cache"), token)
    hub.fetch("org/tiny")
    assert server.tokens == sent
    assert "hf_abc" not in repr(hub)


def test_a_gguf_file_is_fetched_alone_and_by_name_where_there_are_several(hub: Hub, server: FakeHub) -> None:
    assert hub.fetch("org/one-gguf").read_bytes() == b"GGUF"
    assert server.fetched == ["tiny.Q8_0.gguf"]
    file = hub.fetch("org/ggufs", "tiny.Q4_K.gguf")
    assert (file.name, file.read_bytes()) == ("tiny.Q4_K.gguf", b"4")
    with pytest.raises(ModelFormatError, match=r"several .gguf files; name one, as in org/ggufs/tiny.Q4_K.gguf; its"):
        hub.fetch("org/ggufs")
    with pytest.raises(ModelNotFoundError, match=r"has no 'tiny.gguf'; its .gguf files: tiny.Q4_K.gguf, tiny.Q8_0"):
        hub.fetch("org/ggufs", "tiny.gguf")


def test_a_model_of_an_unknown_architecture_is_refused_before_its_weights_are_fetched(
    hub: Hub, server: FakeHub
) -> None:
    with pytest.raises(ModelFormatError, match=r"architectures must be one of LlamaForCausalLM.*MambaForCausalLM"):
        hub.fetch("org/mamba")
    assert "config.json" in server.fetched
    assert "model.safetensors" not in server.fetched


def test_a_pickle_is_never_fetched(hub: Hub, server: FakeHub) -> None:
    with pytest.raises(
        ModelFormatError, match=r"pickled weights are never read.*files: config.json, pytorch_model.bin"
    ):
        hub.fetch("org/pickles")
    assert server.fetched == []


@pytest.mark.parametrize("name", ["org/tiny", "org/sharded", "org/one-gguf"])
def test_where_the_hub_does_not_answer_a_whole_model_fetched_before_is_taken_and_the_log_says_so(
    name: str, repositories: dict[str, dict[str, bytes]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(FakeHub(repositories)) as server:
        hub = Hub(server.endpoint, str(tmp_path))
        fetched = hub.fetch(name)
    with caplog.at_level(logging.WARNING, "fastpaged"):
        assert hub.fetch(name) == fetched
    (record,) = [record for record in caplog.records if record.name.startswith("fastpaged")]
    assert f"{name}: taking what was fetched before" in record.getMessage()


@pytest.mark.parametrize("missing", [SHARDS[1], INDEX_NAME, "config.json"])
def test_where_the_hub_does_not_answer_part_of_a_model_is_not_taken(
    missing: str, repositories: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    with running(FakeHub(repositories)) as server:
        hub = Hub(server.endpoint, str(tmp_path))
        (hub.fetch("org/sharded") / missing).unlink()
    with pytest.raises(Exception, match="(?i)refused"):
        hub.fetch("org/sharded")


def test_safetensors_are_taken_before_a_gguf_file_and_one_file_before_an_index() -> None:
    names = ["b.gguf", "config.json", INDEX_NAME, "model.safetensors"]
    assert choose_weights("org/name", names, None) == "model.safetensors"
    assert choose_weights("org/name", names[:3], None) == INDEX_NAME
    assert choose_weights("org/name", [names[0], *names[2:]], None) == "b.gguf"  # without config.json
    assert choose_weights("org/name", names, "b.gguf") == "b.gguf"


def test_an_error_shows_some_names_of_very_many() -> None:
    with pytest.raises(ModelFormatError, match="its files: 0.bin, .* and 88 more$"):
        choose_weights("org/name", [f"{i}.bin" for i in range(100)], None)
