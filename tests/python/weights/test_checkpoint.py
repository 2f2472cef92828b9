"""Model files by Hugging Face names."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from tiny_model import tiny_config, tiny_weights, to_bfloat16, write_json, write_safetensors, write_tiny_llama
from weights.tiny_gguf import encoded, write_tiny_gguf

from fastpaged.errors import ModelFormatError, ModelNotFoundError
from fastpaged.formats.safetensors_index import INDEX_NAME
from fastpaged.models.registry import config_from_hf
from fastpaged.weights.checkpoint import open_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("checkpoint"), tokenizer=False)


def write_shards(folder: Path, num_files: int) -> None:
    """The tiny model in several files: neighbours in name lie in different ones."""
    weights = tiny_weights()
    homes = {name: f"model-{i % num_files + 1:05d}.safetensors" for i, name in enumerate(sorted(weights))}
    for home in set(homes.values()):
        write_safetensors(folder / home, {name: weights[name] for name in weights if homes[name] == home})
    write_json(folder / INDEX_NAME, {"metadata": {}, "weight_map": homes})
    write_json(folder / "config.json", tiny_config())


def test_a_folder_gives_the_tensors_of_its_safetensors_file(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    assert checkpoint.config == config_from_hf(tiny_config())
    weights = tiny_weights()
    assert sorted(checkpoint.tensor_names) == sorted(weights)
    for name, values in weights.items():
        stored = checkpoint.tensor(name)
        assert (stored.kind, stored.shape) == ("BF16", values.shape)
        assert (checkpoint.kind(name), checkpoint.shape(name)) == ("BF16", values.shape)
        assert stored.data.tobytes() == to_bfloat16(values).tobytes()
    assert checkpoint.kind("model.norm.bias") is None
    checkpoint.close()


@pytest.mark.parametrize("num_files", [1, 2, 5])
def test_a_folder_with_an_index_gives_the_tensors_of_all_its_files(
    folder: Path, tmp_path: Path, num_files: int
) -> None:
    write_shards(tmp_path, num_files)
    one, many = open_checkpoint(folder), open_checkpoint(tmp_path)
    assert many.config == one.config
    assert sorted(many.tensor_names) == sorted(one.tensor_names)
    for name in one.tensor_names:
        assert many.tensor(name).data.tobytes() == one.tensor(name).data.tobytes()
    with pytest.raises(ModelFormatError, match=rf"{INDEX_NAME}: tensor 'model\.norm\.bias' is missing"):
        many.tensor("model.norm.bias")


def test_one_safetensors_file_is_taken_before_an_index_and_an_index_before_a_gguf_file(
    folder: Path, tmp_path: Path
) -> None:
    write_shards(tmp_path, 2)
    (tmp_path / "other.gguf").touch()
    assert open_checkpoint(tmp_path).path == str(tmp_path / INDEX_NAME)
    shutil.copy(folder / "model.safetensors", tmp_path)
    assert open_checkpoint(tmp_path).path == str(tmp_path / "model.safetensors")


@pytest.mark.parametrize("kind", ["BF16", "F16", "F32", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_a_gguf_file_gives_the_same_tensors_by_the_same_names_with_rows_in_the_original_order(
    kind: str, tmp_path: Path
) -> None:
    weights = tiny_weights()
    checkpoint = open_checkpoint(write_tiny_gguf(tmp_path / "tiny.gguf", weights, kind))
    assert checkpoint.config.num_kv_heads == 2
    assert sorted(checkpoint.tensor_names) == sorted(weights)
    for name, values in weights.items():
        stored = checkpoint.tensor(name)
        assert stored.shape == values.shape == checkpoint.shape(name)
        # Blocks run along rows, so that moving rows and encoding them can be done in either order.
        assert stored.data.tobytes() == encoded(values, stored.kind).tobytes(), name
    assert {checkpoint.tensor(name).kind for name in weights if "q_proj" in name} == {kind}


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf", tiny_weights())
    from_file, from_folder = open_checkpoint(file), open_checkpoint(tmp_path)
    assert from_folder.path == from_file.path
    assert from_folder.config == from_file.config


def test_a_file_saved_without_its_head_goes_by_the_names_of_the_whole_model(tmp_path: Path) -> None:
    whole = tiny_weights(tied=True)
    write_json(tmp_path / "config.json", tiny_config(tied=True))
    bare = {name.removeprefix("model."): values for name, values in whole.items()}
    write_safetensors(tmp_path / "model.safetensors", bare)
    checkpoint = open_checkpoint(tmp_path)
    assert sorted(checkpoint.tensor_names) == sorted(whole)
    for name, values in whole.items():
        assert checkpoint.tensor(name).data.tobytes() == to_bfloat16(values).tobytes()
    assert checkpoint.spelled("model.norm.weight") == "'model.norm.weight' ('norm.weight' in the file)"


def test_a_missing_tensor_is_named_as_in_both_worlds(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"model\.safetensors: tensor 'model\.norm\.bias' is missing"):
        open_checkpoint(folder).tensor("model.norm.bias")
    weights = tiny_weights()
    del weights["model.norm.weight"]
    checkpoint = open_checkpoint(write_tiny_gguf(tmp_path / "tiny.gguf", weights))
    assert checkpoint.shape("model.norm.weight") is None
    with pytest.raises(ModelFormatError, match=r"'model\.norm\.weight' \('output_norm\.weight' in the file\)"):
        checkpoint.tensor("model.norm.weight")


def test_a_path_with_no_model_says_what_a_model_is(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="^model: nothing is at .*nowhere'; it must be"):
        open_checkpoint(tmp_path / "nowhere")
    with pytest.raises(ModelNotFoundError, match=r"config\.json and model\.safetensors .*, or one \.gguf file"):
        open_checkpoint(tmp_path)
    for name in (INDEX_NAME, "model.safetensors"):
        (tmp_path / name).touch()
        with pytest.raises(ModelNotFoundError, match=r"config\.json must lie beside .* is missing"):
            open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected JSON"),
        ("[]", "expected a JSON object, got list"),
        (json.dumps({"architectures": ["MambaForCausalLM"]}), "architectures must be one of LlamaForCausalLM"),
    ],
)
def test_a_config_that_cannot_be_read_is_named_with_its_file(
    folder: Path, tmp_path: Path, text: str, message: str
) -> None:
    shutil.copy(folder / "model.safetensors", tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelFormatError, match=message) as error:
        open_checkpoint(tmp_path)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "model.gguf", INDEX_NAME])
def test_a_pipe_within_a_model_folder_is_refused_by_its_name(folder: Path, tmp_path: Path, name: str) -> None:
    if name != "model.gguf":
        shutil.copy(folder / "config.json", tmp_path)
        shutil.copy(folder / "model.safetensors", tmp_path / ("x" if name == INDEX_NAME else "model.safetensors"))
        (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises((ModelFormatError, ModelNotFoundError), match=f"{name}.* a named pipe"):
        open_checkpoint(tmp_path)


def test_more_layers_than_the_file_has_tensors_are_refused_before_any_layer_is_named(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    num_tensors = len(tiny_weights())
    (tmp_path / "config.json").write_text(json.dumps(tiny_config() | {"num_hidden_layers": num_tensors + 1}))
    with pytest.raises(
        ModelFormatError, match=f"num_hidden_layers must be at most {num_tensors}, .*got {num_tensors + 1}"
    ):
        open_checkpoint(tmp_path)
    weights = {"model.norm.weight": np.ones(64, np.float32)}
    with pytest.raises(ModelFormatError, match=r"tiny\.gguf: llama\.block_count must be at most 1, .*got 2"):
        open_checkpoint(write_tiny_gguf(tmp_path / "tiny.gguf", weights))


def test_an_odd_number_of_rows_per_head_cannot_be_put_in_order(tmp_path: Path) -> None:
    weights = tiny_weights()
    weights["blk.1.attn_k.weight"] = np.zeros((34, 64), np.float32)  # under its own name: written as it is
    del weights["model.layers.1.self_attn.k_proj.weight"]
    checkpoint = open_checkpoint(write_tiny_gguf(tmp_path / "tiny.gguf", weights))
    with pytest.raises(ModelFormatError, match=r"'blk\.1\.attn_k\.weight' must have rows for 2 heads .* \[34, 64\]"):
        checkpoint.tensor("model.layers.1.self_attn.k_proj.weight")


@pytest.mark.parametrize("names", [["pytorch_model.bin"], ["model-1.bin", "model-2.bin"], ["consolidated.00.pth"]])
def test_a_folder_of_pickled_weights_says_that_they_are_never_read_and_how_to_convert_them(
    names: list[str], tmp_path: Path
) -> None:
    write_json(tmp_path / "config.json", tiny_config())
    with pytest.raises(ModelNotFoundError, match="it has neither$"):
        open_checkpoint(tmp_path)
    for name in names:
        (tmp_path / name).write_bytes(b"\x80\x04.")
    with pytest.raises(
        ModelNotFoundError, match=r"it has neither\. Pickled weights .* never read.*save_pretrained"
    ) as e:
        open_checkpoint(tmp_path)
    assert names[0] in str(e.value) and ("and others" in str(e.value)) == (len(names) > 1)


@pytest.mark.parametrize("name", ["model.safetensors", "model.gguf"])
def test_a_pointer_of_git_lfs_says_how_to_fetch_what_it_points_at(name: str, tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", tiny_config())
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 269060552\n")
    with pytest.raises(ModelFormatError, match=rf"{name}: content: .* a pointer of git LFS.*`git lfs pull`"):
        open_checkpoint(tmp_path)
