"""Weights as families ask for them: parts of stored tensors, turned, reordered, in either dtype."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import safetensors.numpy
from tiny_model import from_bfloat16, tiny_llama_config, to_bfloat16
from weights.tiny_gguf import encoded

from fastpaged import _core
from fastpaged.config import DType
from fastpaged.errors import ModelFormatError
from fastpaged.formats import SafetensorsFile, StoredTensor
from fastpaged.formats.mapped_file import MappedFile
from fastpaged.models.gguf_name import GgufName
from fastpaged.models.weight_source import Part
from fastpaged.weights.checkpoint import Checkpoint
from fastpaged.weights.loader import Loader

Array = npt.NDArray[Any]
DTYPES: list[DType] = ["bfloat16", "float32"]
RANDOM = np.random.default_rng(11)


class OneFile:
    """Tensors in memory, as a file of one kind would give them."""

    path = "memory"
    files: tuple[MappedFile, ...] = ()

    def __init__(self, kind: str, **values: npt.NDArray[np.float32]) -> None:
        self.tensors = {}
        for name, value in values.items():
            data = encoded(value, kind).reshape(-1).view(np.uint8)
            self.tensors[name] = StoredTensor(name, kind, value.shape, data)

    def close(self) -> None:
        self.tensors = {}


def loader_of(
    file: Any, names: dict[str, GgufName] | None = None, *, dtype: DType = "float32"
) -> tuple[Loader, list[list[Array]]]:
    """A loader whose linear weights are the matrices it was given; and all that it has packed."""
    packed: list[list[Array]] = []

    def pack(parts: list[Array]) -> Array:
        packed.append([part.copy() for part in parts])
        return np.concatenate(parts)

    checkpoint = Checkpoint("memory", tiny_llama_config(), file, names or {})
    return Loader(checkpoint, 7, _core.CpuDevice("scalar", 1), dtype, pack, None), packed


def values(*shape: int) -> npt.NDArray[np.float32]:
    """Random, and exact in bfloat16."""
    return from_bfloat16(to_bfloat16(RANDOM.standard_normal(shape, np.float32)))


def wide(array: Array) -> npt.NDArray[np.float32]:
    return from_bfloat16(array) if array.dtype == np.uint16 else array


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_rows_of_a_matrix_come_in_the_order_asked_for(kind: str, dtype: DType) -> None:
    a, b = values(12, 32), values(5, 32)
    loader, packed = loader_of(OneFile(kind, a=a, b=b), dtype=dtype)
    rows = np.array([3, 1, 11, 3])
    got = loader.linear(Part("a", rows), "b", Part("a"))
    expected = np.concatenate([wide_of(a[rows], kind), wide_of(b, kind), wide_of(a, kind)])
    assert got.dtype == (np.uint16 if dtype == "bfloat16" else np.float32)
    np.testing.assert_array_equal(wide(got), rounded(expected, dtype))
    assert [part.shape for part in packed[0]] == [(4, 32), (5, 32), (12, 32)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_gates_come_before_ups_in_parts_or_in_one(dtype: DType) -> None:
    a, b = values(12, 32), values(12, 32)
    loader, _ = loader_of(OneFile("BF16", a=a, b=b, both=np.concatenate([b, a])), dtype=dtype)
    np.testing.assert_array_equal(wide(loader.gated_linear("b", "a")), np.concatenate([b, a]))
    np.testing.assert_array_equal(wide(loader.gated_linear("both")), np.concatenate([b, a]))


def wide_of(array: npt.NDArray[np.float32], kind: str) -> npt.NDArray[np.float32]:
    return array.astype(np.float16).astype(np.float32) if kind == "F16" else array


def rounded(array: npt.NDArray[np.float32], dtype: DType) -> npt.NDArray[np.float32]:
    return from_bfloat16(to_bfloat16(array)) if dtype == "bfloat16" else array


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["F32", "BF16"])
def test_a_matrix_stored_the_other_way_round_is_turned_before_its_rows_are_counted(kind: str, dtype: DType) -> None:
    a = values(32, 6)
    rows = np.array([5, 0, 2])
    loader, _ = loader_of(OneFile(kind, a=a), dtype=dtype)
    np.testing.assert_array_equal(wide(loader.linear(Part("a", transposed=True))), a.T)
    np.testing.assert_array_equal(wide(loader.linear(Part("a", rows, transposed=True))), a.T[rows])


def test_a_file_may_hold_the_transpose_of_what_the_model_names() -> None:
    """As GGUF files of GPT-2 do: the model's [in, out] is [out, in] there, in blocks that cannot be turned."""
    a = values(6, 32)
    names = {"a": GgufName("there", transposed=True)}
    file = OneFile("Q8_0", there=a)
    loader, _ = loader_of(file, names)
    got = loader.linear(Part("a", np.array([4, 1]), transposed=True))
    np.testing.assert_allclose(got, a[[4, 1]], atol=0.02)
    assert Checkpoint("memory", tiny_llama_config(), file, names).shape("a") == (32, 6)


def test_rows_that_the_converter_has_moved_come_back_before_rows_are_counted() -> None:
    original = values(12, 32)
    moved = RANDOM.permutation(12)  # row i of the file is row moved[i] of the original
    bias = values(12)
    names = {"a": GgufName("x", rows=moved), "b": GgufName("y", rows=moved)}
    loader, _ = loader_of(OneFile("F32", x=original[moved], y=bias[moved]), names)
    np.testing.assert_array_equal(loader.linear("a"), original)
    np.testing.assert_array_equal(loader.linear(Part("a", np.array([7, 2]))), original[[7, 2]])
    np.testing.assert_array_equal(loader.vector(Part("b", np.array([7, 2]))), bias[[7, 2]])


def test_biases_of_rotated_projections_are_put_in_order_like_their_rows() -> None:
    bias = values(24)
    permuted = bias.reshape(3, 2, 4).swapaxes(1, 2).reshape(-1)
    loader, _ = loader_of(OneFile("F32", x=permuted), {"b": GgufName("x", permuted_heads=3)})
    np.testing.assert_array_equal(loader.vector("b"), bias)


def test_norms_stored_plus_one_are_read_without_it_and_others_as_they_are() -> None:
    a, b = values(9), values(4)
    loader, _ = loader_of(OneFile("F32", x=a + np.float32(1), b=b), {"a": GgufName("x", minus_one=True)})
    got = loader.vector("a", "b")
    np.testing.assert_allclose(got, np.concatenate([a, b]), atol=2**-22)
    np.testing.assert_array_equal(got[:9] + np.float32(1), a + np.float32(1))
    assert got.dtype == np.float32


def test_vectors_of_several_tensors_stand_one_behind_the_other() -> None:
    a, b = values(9), values(4)
    loader, _ = loader_of(OneFile("BF16", a=a, b=b))
    np.testing.assert_array_equal(
        loader.vector("b", Part("a", np.arange(9)[::-1]), "b"), np.concatenate([b, a[::-1], b])
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_tables_are_in_the_dtype_of_the_computation_and_float_tables_in_float32(dtype: DType) -> None:
    exact = RANDOM.standard_normal((7, 32), np.float32)
    loader, packed = loader_of(OneFile("F32", a=exact), dtype=dtype)
    table = loader.table("a")
    assert table.dtype == (np.uint16 if dtype == "bfloat16" else np.float32)
    np.testing.assert_array_equal(wide(table), rounded(exact, dtype))
    np.testing.assert_array_equal(loader.float_table("a"), exact)
    np.testing.assert_array_equal(wide(loader.linear("a")), rounded(exact, dtype))
    assert packed[0][0].dtype == table.dtype


def test_weights_stored_in_the_dtype_of_the_computation_are_not_copied(tmp_path: Path) -> None:
    safetensors.numpy.save_file({"a": values(4, 32)}, tmp_path / "f.safetensors")
    seen: list[Array] = []
    for dtype, shares in (("float32", True), ("bfloat16", False)):
        file = SafetensorsFile.open(tmp_path / "f.safetensors")
        checkpoint = Checkpoint("f", tiny_llama_config(), file, {})
        Loader(checkpoint, 1, _core.CpuDevice("scalar", 1), dtype, seen.extend, None).linear("a")  # type: ignore[arg-type]
        assert np.shares_memory(seen[-1], file.tensors["a"].data) == shares


def test_a_vector_of_odd_heads_cannot_be_put_in_order() -> None:
    loader, _ = loader_of(OneFile("F32", x=values(9)), {"b": GgufName("x", permuted_heads=3)})
    with pytest.raises(ModelFormatError, match=r"'x' must have rows for 3 heads of even size, got shape \[9\]"):
        loader.vector("b")
