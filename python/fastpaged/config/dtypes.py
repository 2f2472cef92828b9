"""The dtypes a model is computed in, of its weights and activations, and those its KV cache is kept in."""

from __future__ import annotations

import reprlib
from typing import Literal

from fastpaged.errors import InvalidRequestError
from fastpaged.param_checks import is_one_of

DType = Literal["bfloat16", "float32"]
KVDType = Literal["bfloat16", "float32", "fp8_e4m3", "fp8_e5m2", "int8"]

# A key or a value, the vector of one token and head, as one-byte codes and one float32 scale.
KV_CODES: tuple[KVDType, ...] = ("fp8_e4m3", "fp8_e5m2", "int8")
KV_SCALE_BYTES = 4

DTYPES = ("auto", "bfloat16", "float32")
KV_DTYPES = (*DTYPES, *KV_CODES)
_OTHER_NAMES = {"float": "float32", "fp8": "fp8_e4m3", "float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}


def compute_dtype(dtype: str) -> DType:
    """What EngineConfig.dtype stands for."""
    return "float32" if dtype == "float32" else "bfloat16"


def element_bytes(dtype: DType) -> int:
    """Bytes of one element."""
    return 2 if dtype == "bfloat16" else 4


def kv_dtype(kv_cache_dtype: str, dtype: str) -> KVDType:
    """What EngineConfig.kv_cache_dtype stands for, beside EngineConfig.dtype."""
    for codes in KV_CODES:
        if kv_cache_dtype == codes:
            return codes
    return compute_dtype(dtype)


def kv_vector_bytes(dtype: KVDType, head_dim: int) -> int:
    """Bytes of the key or the value of one token and head."""
    if dtype == "bfloat16" or dtype == "float32":
        return head_dim * element_bytes(dtype)
    return head_dim + KV_SCALE_BYTES


def checked_dtype(name: str, value: object) -> str:
    """One of DTYPES, and of KV_DTYPES as kv_cache_dtype. "float" is float32, "fp8" fp8_e4m3, and torch's own dtypes are
    as good as their names."""
    given = str(value).removeprefix("torch.") if type(value).__module__ == "torch" else value
    dtype = _OTHER_NAMES.get(given, given) if isinstance(given, str) else given
    allowed = KV_DTYPES if name == "kv_cache_dtype" else DTYPES
    if is_one_of(dtype, allowed):
        return str(dtype)
    why = ""
    if dtype in ("half", "float16"):
        why = " (float16 is no dtype to compute in here: files in it are read as bfloat16 or float32)"
    elif isinstance(dtype, str) and name == "kv_cache_dtype" and dtype.startswith(("int4", "nvfp4", "fp4")):
        why = " (there is no KV cache of fewer than 8 bits)"
    elif is_one_of(dtype, KV_CODES):
        why = " (of 8 bits is the KV cache alone: give kv_cache_dtype)"
    shown = ", ".join(map(repr, allowed[:-1])) + f" or {allowed[-1]!r}"
    raise InvalidRequestError(f"{name} must be {shown}{why}, got {reprlib.repr(value)}")
