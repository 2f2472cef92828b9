"""Model names: paths, FASTPAGED_MODELS, the hub."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_model import write_tiny_llama
from weights.fake_hub import FakeHub, files_of, running

from fastpaged.errors import InvalidRequestError, ModelFormatError, ModelNotFoundError
from fastpaged.weights.hub import Hub
from fastpaged.weights.local_model import local_model


class NotedHub(Hub):
    """Fetches nothing: it raises what it was asked for."""

    def fetch(self, repository: str, gguf: str | None = None, *, revision: str | None = None, **_: Any) -> Path:
        raise LookupError(repository, gguf, *filter(None, [revision]))

    def fetch_small(self, repository: str, *, revision: str | None = None) -> Path:
        raise LookupError("small", repository, *filter(None, [revision]))


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """FASTPAGED_MODELS, in a folder of its own that is not the current one."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "models").mkdir()
    monkeypatch.setenv("FASTPAGED_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


@pytest.fixture
def tiny_hub(tiny_llama: Path) -> Iterator[FakeHub]:
    with running(FakeHub({"org/tiny": files_of(tiny_llama)}, gated=("org/gated",))) as hub:
        yield hub


def asked_for(name: str, **how: Any) -> tuple[object, ...]:
    with pytest.raises(ModelNotFoundError) as error:
        local_model(name, NotedHub(), **how)
    assert isinstance(error.value.__cause__, LookupError)
    return error.value.__cause__.args


def test_a_path_wins_over_every_name(models: Path) -> None:
    for place in (Path("org/name"), models / "org/name"):
        place.mkdir(parents=True)
    assert local_model("org/name", NotedHub()) == Path("org/name")
    assert local_model(str(models), NotedHub()) == models


@pytest.mark.parametrize("name", ["org/name", "name", "org/name/a.gguf", "org/a.gguf", "a.gguf", "org/name/folder"])
def test_the_folder_of_models_is_looked_in_before_the_hub(models: Path, name: str) -> None:
    if name.endswith(".gguf"):
        (models / name).parent.mkdir(parents=True, exist_ok=True)
        (models / name).touch()
    else:
        (models / name).mkdir(parents=True)
    assert local_model(name, NotedHub()) == models / name


@pytest.mark.parametrize("setting", ["a folder", "", None])
def test_a_name_that_is_nowhere_here_is_asked_of_the_hub(setting: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if setting == "":
        monkeypatch.setenv("FASTPAGED_MODELS", "")
    if setting is None:
        monkeypatch.delenv("FASTPAGED_MODELS")
    assert asked_for("org/name") == ("org/name", None)
    assert asked_for("Org_1/na.me-2") == ("Org_1/na.me-2", None)
    assert asked_for("org/name/a.Q4_K.gguf") == ("org/name", "a.Q4_K.gguf")


def test_a_revision_is_the_hub_s_alone(models: Path) -> None:
    (models / "org/name").mkdir(parents=True)
    assert asked_for("org/name", revision="v1") == ("org/name", None, "v1")
    assert asked_for("org/name/a.gguf", revision="v1") == ("org/name", "a.gguf", "v1")
    with pytest.raises(InvalidRequestError, match="revision must be None for a path, which .* is, got 'v1'"):
        local_model(str(models), NotedHub(), revision="v1")


def test_without_weights_only_what_lies_beside_them_is_asked_for(models: Path) -> None:
    assert asked_for("org/name", without_weights=True) == ("small", "org/name")
    assert asked_for("org/name", without_weights=True, revision="v1") == ("small", "org/name", "v1")
    assert asked_for("org/name/a.gguf", without_weights=True) == ("org/name", "a.gguf")
    (models / "org/name").mkdir(parents=True)
    assert local_model("org/name", NotedHub(), without_weights=True) == models / "org/name"


PATHS = ["name", "a.gguf", "org/a.gguf", "./name", "../name", "org/../name", "/org/name", "org/name/", "a/b/c", "a//b"]
NO_NAMES = ["~/name", "a/b/c/d.gguf", "org/na me", "org/näme", "-org/name", ".org/name", "org\\name", "nul/\0"]


@pytest.mark.parametrize("name", [*PATHS, *NO_NAMES, f"org/{'x' * 97}"])
def test_what_no_repository_can_be_called_stays_a_path_and_the_hub_is_not_asked(name: str) -> None:
    assert local_model(name, NotedHub()) == Path(name)


@pytest.mark.parametrize("name", ["../name", "org/../../name", "/name"])
def test_no_name_leads_out_of_the_folder_of_models(models: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (models / "inner").mkdir()
    (models / "name").mkdir()
    monkeypatch.setenv("FASTPAGED_MODELS", str(models / "inner"))
    assert local_model(name, NotedHub()) == Path(name)


def test_a_folder_of_models_that_is_none_is_an_error_once_it_is_looked_in(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (models / "file").touch()
    for place, found in (("absent", "nothing is"), ("file", "a regular file is")):
        monkeypatch.setenv("FASTPAGED_MODELS", str(models / place))
        with pytest.raises(
            ModelNotFoundError, match=f"FASTPAGED_MODELS must be a folder, got .*{place}', where {found}"
        ):
            local_model("org/name", NotedHub())
        assert local_model(str(models), NotedHub()) == models


def test_the_hub_s_model_is_fetched(tiny_hub: FakeHub, tiny_llama: Path, tmp_path: Path) -> None:
    place = local_model("org/tiny", Hub(tiny_hub.endpoint, str(tmp_path / "cache")))
    assert files_of(place) == files_of(tiny_llama)


def test_a_name_that_is_nowhere_is_an_error_with_the_reason_and_what_to_do(
    tiny_hub: FakeHub, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(tiny_hub.endpoint, str(tmp_path / "cache"))
    for name, reason in (("org/none", "404"), ("org/gated", "org/gated is gated: log in"), ("a/b..c", "repo_id")):
        with pytest.raises(ModelNotFoundError) as error:
            local_model(name, hub)
        message = str(error.value)
        assert message.startswith(f"model: nothing is at {name!r}, nor in FASTPAGED_MODELS ({models}), and fetching it")
        assert reason in message.split("failed (")[1].split("). Give the path")[0]
        assert f"put the model into a folder as {name} and set FASTPAGED_MODELS" in message
        assert "hf auth login" in message
        assert "\n" not in message
    monkeypatch.delenv("FASTPAGED_MODELS")
    with pytest.raises(ModelNotFoundError, match="nothing is at 'org/none', and fetching it from the hub failed"):
        local_model("org/none", hub)


def test_an_error_of_ours_stays_as_it_is(tmp_path: Path) -> None:
    hub = FakeHub({"org/pickles": {"pytorch_model.bin": b""}})
    with running(hub), pytest.raises(ModelFormatError, match="^model: org/pickles on the hub must hold config.json"):
        local_model("org/pickles", Hub(hub.endpoint, str(tmp_path)))


def in_a_process_of_its_own(code: str, **environment: str) -> str:
    """What it prints; huggingface_hub reads the environment when it is imported."""
    clean = {
        key: value for key, value in os.environ.items() if not key.startswith("HF_") and "PROXY" not in key.upper()
    }
    result = subprocess.run(
        [sys.executable, "-c", code], env=clean | environment, capture_output=True, text=True, check=True, timeout=120
    )
    return result.stdout.strip()


FETCH = """
from fastpaged.errors import ModelNotFoundError
from fastpaged.weights.local_model import local_model
try:
    print("found", local_model("org/tiny").name)
except ModelNotFoundError as error:
    print(error)
"""


def test_huggingface_hub_s_own_settings_hold(tiny_hub: FakeHub, tmp_path: Path) -> None:
    home = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": tiny_hub.endpoint}
    refused = in_a_process_of_its_own(FETCH, **home, HF_HUB_OFFLINE="1")
    assert "OfflineModeIsEnabled" in refused and "HF_HUB_OFFLINE" in refused
    found = in_a_process_of_its_own(FETCH, **home)
    assert found.startswith("found ")
    assert in_a_process_of_its_own(FETCH, **home, HF_HUB_OFFLINE="1") == found
    assert in_a_process_of_its_own(FETCH, **home | {"HF_ENDPOINT": "http://127.0.0.1:9"}) == found


def test_a_path_is_found_without_importing_huggingface_hub(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "tiny", tokenizer=False)
    code = f"""
import sys
from fastpaged.weights import load_model, local_model, open_checkpoint
open_checkpoint(local_model({str(tmp_path / "tiny")!r}))
print("huggingface_hub" in sys.modules)
"""
    assert in_a_process_of_its_own(code) == "False"
