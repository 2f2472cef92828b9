"""From files to a model that stands."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import safetensors.numpy
from forced import last_logits
from isas import EVERY_ISA
from tiny_model import tiny_config, tiny_llama_config, tiny_weights, write_json, write_safetensors, write_tiny_llama
from weights.tiny_gguf import encoded, write_gguf, write_tiny_gguf

from fastpaged import _core
from fastpaged.config import DType, EngineConfig
from fastpaged.config.keys import Keys
from fastpaged.errors import ModelFormatError
from fastpaged.models.llama import Llama
from fastpaged.weights.checkpoint import open_checkpoint
from fastpaged.weights.loader import load_model, weight_bytes
from fastpaged.worker.worker import Worker

PROMPT = [5, 250, 17, 3, 3, 99, 120, 7]


@pytest.fixture
def device() -> _core.CpuDevice:
    return _core.CpuDevice("scalar", 1)


@pytest.mark.parametrize("tied", [False, True])
def test_progress_counts_every_weight_once(tied: bool, device: _core.CpuDevice, tmp_path: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    load_model(write_tiny_llama(tmp_path, tied=tied, tokenizer=False), device, lambda *call: calls.append(call))
    total = len(tiny_weights(tied=tied))
    done = [call[1] for call in calls]
    assert done == sorted(done)
    assert done[-1] == total
    assert {(phase, of) for phase, _, of in calls} == {("loading weights", total)}


def test_weights_arrive_stacked_and_in_their_dtypes(device: _core.CpuDevice, tmp_path: Path) -> None:
    model = load_model(write_tiny_llama(tmp_path, tokenizer=False), device, max_model_len=40)
    assert isinstance(model, Llama)
    weights = model.weights
    assert weights.embed.shape == (300, 64)
    assert weights.embed.dtype == np.dtype(np.uint16)
    assert weights.norm.shape == (64,)
    assert weights.norm.dtype == np.dtype(np.float32)
    assert weights.rope.shape == (40, 16)
    layer = weights.layers[1]
    assert (layer.qkv.out_features, layer.qkv.in_features) == (64 + 2 * 32, 64)
    assert (layer.gate_up.out_features, layer.gate_up.in_features) == (2 * 172, 64)
    assert (layer.down.out_features, layer.down.in_features) == (64, 172)
    np.testing.assert_array_equal(layer.mlp_norm, tiny_weights()["model.layers.1.post_attention_layernorm.weight"])


def test_a_tied_embedding_takes_memory_twice() -> None:
    elements = {tied: sum(weight.size for weight in tiny_weights(tied=tied).values()) for tied in (False, True)}
    assert weight_bytes(tiny_llama_config(), "float32") == 4 * elements[False]
    assert weight_bytes(tiny_llama_config(tied=True), "bfloat16") == 2 * (elements[True] + 300 * 64)


@pytest.mark.parametrize("kind", ["BF16", "F32"])
@pytest.mark.parametrize("isa", EVERY_ISA)
def test_the_same_weights_in_either_format_give_the_same_bits(kind: str, isa: str, tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "folder", tokenizer=False)
    file = write_tiny_gguf(tmp_path / "tiny.gguf", tiny_weights(), kind)
    logits = []
    for path in (folder, file):
        config = EngineConfig(model=str(path), isa=isa, num_blocks=8, max_model_len=64)
        logits.append(last_logits(Worker(config), config, [PROMPT]))
    assert logits[0].tobytes() == logits[1].tobytes()


def folder_logits(path: Path, isa: str = "scalar") -> bytes:
    config = EngineConfig(model=str(path), isa=isa, num_blocks=8, max_model_len=64)
    return last_logits(Worker(config), config, [PROMPT]).tobytes()


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K"])
def test_blocks_of_256_load_as_the_bfloat16_nearest_to_what_they_stand_for(kind: str, tmp_path: Path) -> None:
    """Matrices of random blocks against the same values, rounded, in a folder: q and k in the order of either world."""
    config = tiny_config() | {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
    ggml_kind = gguf.GGMLQuantizationType[kind]
    elements, num_bytes = gguf.GGML_QUANT_SIZES[ggml_kind]
    random = np.random.default_rng(5)
    stored, values = {}, {}
    for name, shape in Llama.weight_shapes(Llama.config_from_hf(Keys("config.json", config))).items():
        if len(shape) == 1:
            values[name] = np.ones(shape, np.float32)
            stored[name] = encoded(values[name], "F32"), "F32"
            continue
        blocks = random.integers(0, 256, (shape[0], shape[1] // elements, num_bytes)).astype(np.uint8)
        for at in (208,) if kind == "Q6_K" else (0, 2):
            blocks[..., at : at + 2] = np.array([2e-5], np.float16).view(np.uint8)
        rows = blocks.reshape(shape[0], -1)
        stored[name] = rows, kind
        values[name] = gguf.quants.dequantize(rows, ggml_kind).astype(np.float32)
    folder = tmp_path / "folder"
    folder.mkdir()
    write_json(folder / "config.json", config)
    write_safetensors(folder / "model.safetensors", values)
    logits = folder_logits(write_gguf(tmp_path / "k.gguf", config, stored))
    assert logits == folder_logits(folder)
    assert np.ptp(np.frombuffer(logits, np.float32)) > 0


@pytest.mark.parametrize(("dtype", "level"), [(np.float16, "WARNING"), (np.float32, "INFO")])
def test_wider_safetensors_load_as_the_nearest_bfloat16_and_the_log_says_so_once(
    dtype: npt.DTypeLike, level: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    random = np.random.default_rng(6)
    wide = {}
    for name, weight in tiny_weights().items():
        noise = 0 if weight.ndim == 1 else random.standard_normal(weight.shape, np.float32) * weight / 500
        wide[name] = (weight + noise).astype(dtype)
    exact = write_tiny_llama(tmp_path / "wide", tokenizer=False)
    safetensors.numpy.save_file(wide, exact / "model.safetensors")
    rounded = write_tiny_llama(tmp_path / "rounded", tokenizer=False)
    write_safetensors(rounded / "model.safetensors", {name: weight.astype(np.float32) for name, weight in wide.items()})
    with caplog.at_level("INFO", "fastpaged.weights"):
        logits = folder_logits(exact)
        (record,) = caplog.records
        assert logits == folder_logits(rounded)
    assert len(caplog.records) == 1
    num_matrices = sum(weight.ndim > 1 for weight in wide.values())
    stored = f"model.safetensors: {num_matrices} matrices stored as {np.dtype(dtype)} are rounded to bfloat16"
    assert (record.levelname, stored in record.getMessage()) == (level, True)


@pytest.mark.parametrize("kind", ["BF16", "F16", "F32"])
def test_in_float32_nothing_is_rounded_and_nothing_is_said(
    kind: str, device: _core.CpuDevice, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights = {name: weight + np.float32(2**-12) * weight for name, weight in tiny_weights().items()}
    path = write_tiny_gguf(tmp_path / "tiny.gguf", weights, kind)
    matrices: list[npt.NDArray[np.float32]] = []
    with caplog.at_level("INFO", "fastpaged.weights"):
        load_model(path, device, dtype="float32", pack=lambda parts: matrices.extend(map(np.copy, parts)))
    assert caplog.records == []
    stored = open_checkpoint(path).tensor("model.layers.0.self_attn.o_proj.weight")
    expected = gguf.quants.dequantize(stored.data, gguf.GGMLQuantizationType[kind]).reshape(stored.shape)
    assert any(matrix.tobytes() == expected.astype(np.float32).tobytes() for matrix in matrices)


@pytest.mark.parametrize(
    ("kind", "levels"), [("F16", ["WARNING"]), ("F32", ["INFO"]), ("BF16", []), ("Q8_0", []), ("Q4_1", [])]
)
def test_the_log_tells_of_rounded_matrices_in_a_gguf_file_and_not_of_its_vectors(
    kind: str, levels: list[str], device: _core.CpuDevice, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "fastpaged.weights"):
        load_model(write_tiny_gguf(tmp_path / "tiny.gguf", tiny_weights(), kind), device)
    assert [record.levelname for record in caplog.records] == levels


def test_bfloat16_at_an_odd_address_is_read_all_the_same(device: _core.CpuDevice, tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "even", tokenizer=False)
    odd = write_tiny_llama(tmp_path / "odd", tokenizer=False)
    content = (odd / "model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little") + 1
    (odd / "model.safetensors").write_bytes(
        length.to_bytes(8, "little") + content[8 : 7 + length] + b" " + content[7 + length :]
    )
    logits = []
    for path in (folder, odd):
        config = EngineConfig(model=str(path), isa="scalar", num_blocks=8, max_model_len=64)
        logits.append(last_logits(Worker(config), config, [PROMPT]))
    assert logits[0].tobytes() == logits[1].tobytes()


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight", "lm_head.weight"])
def test_a_missing_tensor_is_named_with_its_shape(name: str, device: _core.CpuDevice, tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, tokenizer=False)
    weights = tiny_weights()
    shape = list(weights.pop(name).shape)
    write_safetensors(folder / "model.safetensors", weights)
    with pytest.raises(ModelFormatError) as error:
        load_model(folder, device)
    for part in (str(folder), repr(name), str(shape), "missing"):
        assert part in str(error.value)


def test_a_tensor_of_another_shape_is_named_with_both_before_anything_is_loaded(
    device: _core.CpuDevice, tmp_path: Path
) -> None:
    weights = tiny_weights() | {"model.layers.1.mlp.down_proj.weight": np.zeros((64, 160), np.float32)}
    calls: list[int] = []
    with pytest.raises(ModelFormatError) as error:
        load_model(write_tiny_gguf(tmp_path / "t.gguf", weights), device, lambda _, done, __: calls.append(done))
    for part in ("t.gguf", "down_proj", "blk.1.ffn_down.weight", "[64, 172]", "[64, 160]"):
        assert part in str(error.value)
    assert calls == []


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.q_proj.bias", "model.layers.2.input_layernorm.weight"])
def test_a_tensor_the_model_would_not_use_is_an_error(name: str, device: _core.CpuDevice, tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, tokenizer=False)
    write_safetensors(folder / "model.safetensors", tiny_weights() | {name: np.zeros(64, np.float32)})
    with pytest.raises(ModelFormatError, match=f"{name}.* no part of a llama model"):
        load_model(folder, device)


def test_left_over_tensors_that_follow_from_the_config_are_no_error(device: _core.CpuDevice, tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, tokenizer=False, tied=True)
    weights = tiny_weights(tied=True)
    extra = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(8, np.float32),
        "lm_head.weight": weights["model.embed_tokens.weight"],
    }
    write_safetensors(folder / "model.safetensors", weights | extra)
    assert load_model(folder, device).config.tie_word_embeddings


def resident_kib(path: Path) -> int:
    """Of what is mapped of a file in or below `path`."""
    total, is_of_path = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            is_of_path = str(path) in line
        elif words[0] == "Rss:" and is_of_path:
            total += int(words[1])
    return total


@pytest.mark.parametrize("form", ["safetensors", "gguf"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_file_is_unmapped_once_no_table_is_read_from_it(
    dtype: DType, form: str, device: _core.CpuDevice, tmp_path: Path
) -> None:
    """An embedding that is stored in the dtype of the computation is not copied."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("needs /proc")
    if form == "gguf":
        path = write_tiny_gguf(tmp_path / "tiny.gguf", tiny_weights())
    else:
        path = write_tiny_llama(tmp_path / "folder", tokenizer=False)
    seen: list[bool] = []
    model = load_model(path, device, lambda *_: seen.append(str(path) in maps.read_text()), dtype=dtype)
    assert isinstance(model, Llama)
    assert seen[0]
    assert (str(path) in maps.read_text()) == (dtype == "bfloat16")
    assert resident_kib(path) == 0
    assert model.config.num_layers == 2
    assert model.weights.embed.flags.owndata == (dtype == "float32")
    del model
    assert str(path) not in maps.read_text()
