from __future__ import annotations

import numpy as np
import pytest
from isas import EVERY_ISA
from op_arrays import Dtype

from fastpaged import _core


@pytest.fixture(params=EVERY_ISA)
def isa(request: pytest.FixtureRequest) -> str:
    """Every op table: the same cases serve them all."""
    name = request.param
    assert isinstance(name, str)
    return name


@pytest.fixture
def device(isa: str) -> _core.CpuDevice:
    return _core.CpuDevice(isa, 2)


@pytest.fixture
def one_thread(isa: str) -> _core.CpuDevice:
    return _core.CpuDevice(isa, 1)


@pytest.fixture(params=["bfloat16", "float32"])
def dtype(request: pytest.FixtureRequest) -> Dtype:
    """Of activations, linear weights and the KV cache."""
    name: Dtype = request.param
    return name


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20230923)
