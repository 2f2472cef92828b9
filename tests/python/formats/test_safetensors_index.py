from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from fastpaged.errors import ModelFormatError, ModelNotFoundError
from fastpaged.formats import ShardedSafetensors
from fastpaged.formats.safetensors_index import INDEX_NAME

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def write_shards(folder: Path, shards: dict[str, list[str]]) -> dict[str, np.ndarray[Any, Any]]:
    """File name -> names of its tensors. Returns every tensor; writes the index that is right for them."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for number, (shard, names) in enumerate(shards.items()):
        mine = {name: np.full((2, i + 1), 10 * number + i, np.float32) for i, name in enumerate(names)}
        safetensors.numpy.save_file(mine, folder / shard)
        tensors.update(mine)
    write_index(folder, {name: shard for shard, names in shards.items() for name in names})
    return tensors


def write_index(folder: Path, weight_map: object) -> None:
    (folder / INDEX_NAME).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shards(tmp_path / "model", {FIRST: ["a", "b"], SECOND: ["c"]})
    return tmp_path / "model"


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(st.text(max_size=9).filter(lambda name: name != "__metadata__"), st.integers(0, 4), min_size=1))
def test_the_tensors_of_all_files_are_read_whatever_lies_where(
    tmp_path_factory: pytest.TempPathFactory, homes: dict[str, int]
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    shards = {f"{home}.safetensors": [name for name in homes if homes[name] == home] for home in set(homes.values())}
    tensors = write_shards(folder, shards)
    file = ShardedSafetensors.open(folder / INDEX_NAME)
    assert set(file.tensors) == set(tensors)
    for name, tensor in tensors.items():
        stored = file.tensors[name]
        assert (stored.name, stored.kind, stored.shape) == (name, "F32", tensor.shape)
        assert stored.data.tobytes() == tensor.tobytes()
        assert not stored.data.flags.writeable


def test_tensors_outlive_the_files(folder: Path) -> None:
    file = ShardedSafetensors.open(folder / INDEX_NAME)
    data = file.tensors["c"].data
    file.close()
    assert file.tensors == {}
    shutil.rmtree(folder)
    assert data.view(np.float32).tolist() == [10, 10]


def test_other_files_beside_the_index_are_left_alone(folder: Path) -> None:
    (folder / "consolidated.safetensors").write_bytes(b"no tensors at all")
    assert set(ShardedSafetensors.open(folder / INDEX_NAME).tensors) == {"a", "b", "c"}


def test_shards_may_be_links_to_elsewhere_as_in_the_hub_s_cache(folder: Path, tmp_path: Path) -> None:
    shutil.move(folder / FIRST, tmp_path / "blob")
    (folder / FIRST).symlink_to(tmp_path / "blob")
    assert set(ShardedSafetensors.open(folder / INDEX_NAME).tensors) == {"a", "b", "c"}


RIGHT = {"a": FIRST, "b": FIRST, "c": SECOND}
BROKEN_MAPS: dict[str, tuple[object, str]] = {
    "a file that is not there": (RIGHT | {"c": "3.safetensors"}, "'c': expected the file '3.safetensors' .*no such"),
    "a tensor that is in no file": (RIGHT | {"d": FIRST}, f"'d': expected this tensor in '{FIRST}', found it in none"),
    "a tensor in another file": (
        RIGHT | {"b": SECOND},
        f"'b': expected this tensor in '{SECOND}', found it in '{FIRST}'",
    ),
    "a tensor left out": (
        {"a": FIRST, "c": SECOND},
        f"'b': expected an entry for this tensor, .*'{FIRST}', found none",
    ),
    "a file above the folder": (RIGHT | {"c": "../x.safetensors"}, "'c': expected the name .*same folder, found '../x"),
    "a file below the folder": (RIGHT | {"c": "x/y.safetensors"}, "'c': expected the name of a .safetensors file"),
    "an absolute file": (RIGHT | {"c": "/etc/x.safetensors"}, "'c': expected the name .*found '/etc"),
    "a file by another system's path": (RIGHT | {"c": "..\\x.safetensors"}, "'c': expected the name"),
    "a file with a NUL": (RIGHT | {"c": "\0.safetensors"}, "'c': expected the name"),
    "a pickle": (RIGHT | {"c": "pytorch_model.bin"}, "'c': expected the name of a .safetensors file .*pytorch_model"),
    "a file that is no string": (RIGHT | {"c": 2}, "'c': expected the name .*found 2"),
    "a file that is null": (RIGHT | {"c": None}, "'c': expected the name .*found None"),
    "no tensors": ({}, "weight_map: expected an object that names a file for every tensor, found {}"),
    "a list": ([FIRST, SECOND], "weight_map: expected an object"),
    "nothing": (None, "weight_map: expected an object .*found None"),
}


@pytest.mark.parametrize("case", BROKEN_MAPS)
def test_an_index_that_does_not_fit_the_files_is_refused_naming_file_and_key(folder: Path, case: str) -> None:
    weight_map, message = BROKEN_MAPS[case]
    write_index(folder, weight_map)
    with pytest.raises(ModelFormatError, match=message) as error:
        ShardedSafetensors.open(folder / INDEX_NAME)
    assert str(error.value).startswith(f"{folder / INDEX_NAME}: weight_map")


BROKEN_TEXTS: dict[str, tuple[str, str]] = {
    "no JSON": ("{", "index: expected JSON in UTF-8, found JSONDecodeError"),
    "JSON that nests without end": ("[" * 100_000, "index: expected JSON"),
    "a list": ("[]", "index: expected a JSON object, found list"),
    "no weight_map": ('{"metadata": {}}', "weight_map: expected an object .*found None"),
    "a tensor twice": (
        '{"weight_map": {"a": "1.safetensors", "a": "2.safetensors"}}',
        "every name once, found 'a' twice",
    ),
    "nothing": ("", "expected a model file, found an empty file"),
}


@pytest.mark.parametrize("case", BROKEN_TEXTS)
def test_a_text_that_is_no_index_is_refused(folder: Path, case: str) -> None:
    text, message = BROKEN_TEXTS[case]
    (folder / INDEX_NAME).write_text(text)
    with pytest.raises(ModelFormatError, match=message) as error:
        ShardedSafetensors.open(folder / INDEX_NAME)
    assert str(folder / INDEX_NAME) in str(error.value)


def test_an_index_beyond_any_real_one_is_not_read(folder: Path) -> None:
    os.truncate(folder / INDEX_NAME, 100_000_001)
    with pytest.raises(ModelFormatError, match="size: expected at most 100000000 bytes, found 100000001"):
        ShardedSafetensors.open(folder / INDEX_NAME)


def test_a_tensor_in_two_files_is_refused(folder: Path) -> None:
    safetensors.numpy.save_file({"c": np.zeros(3, np.float32), "a": np.zeros(3, np.float32)}, folder / SECOND)
    with pytest.raises(ModelFormatError, match=f"'a': expected one file that holds it, .*'{FIRST}' and '{SECOND}'"):
        ShardedSafetensors.open(folder / INDEX_NAME)


@pytest.mark.parametrize(("kind", "put"), [("a named pipe", os.mkfifo), ("a folder", os.mkdir)], ids=["pipe", "folder"])
def test_a_shard_that_is_no_file_is_refused_unopened(folder: Path, kind: str, put: Callable[[Path], None]) -> None:
    (folder / SECOND).unlink()
    put(folder / SECOND)
    with pytest.raises(ModelFormatError, match=f"weight_map 'c': expected the file '{SECOND}' .*found {kind}"):
        ShardedSafetensors.open(folder / INDEX_NAME)


def test_a_shard_cut_short_is_refused_by_its_own_name(folder: Path) -> None:
    content = (folder / SECOND).read_bytes()
    (folder / SECOND).write_bytes(content[:-1])
    with pytest.raises(ModelFormatError, match=f"{SECOND}: tensor 'c', data_offsets"):
        ShardedSafetensors.open(folder / INDEX_NAME)


def test_an_absent_index_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=f"{INDEX_NAME}' cannot be read as a file"):
        ShardedSafetensors.open(tmp_path / INDEX_NAME)
