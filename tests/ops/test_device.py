from __future__ import annotations

import os

import pytest

from fastpaged import _core


def test_the_portable_table_is_always_supported_and_the_emulation_never_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FASTPAGED_ISA", raising=False)
    supported = _core.supported_isas()
    assert "scalar" in supported
    assert set(supported) <= set(_core.known_isas())
    assert _core.default_isa() == supported[0] != "amx_emulated"


def test_fastpaged_isa_chooses_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    for isa in _core.supported_isas():
        monkeypatch.setenv("FASTPAGED_ISA", isa)
        assert _core.default_isa() == isa


def test_an_unsupported_isa_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    supported = ", ".join(_core.supported_isas())
    absent = [isa for isa in _core.known_isas() if isa not in _core.supported_isas()]
    for isa in ["avx9000", *absent]:
        monkeypatch.setenv("FASTPAGED_ISA", isa)
        with pytest.raises(
            ValueError, match=rf"FASTPAGED_ISA must be one this CPU supports \({supported}\), got '{isa}'"
        ):
            _core.default_isa()
        with pytest.raises(ValueError, match=rf"isa must be one this CPU supports \({supported}\), got '{isa}'"):
            _core.CpuDevice(isa, 1)


def test_a_device_knows_its_table_and_its_threads() -> None:
    device = _core.CpuDevice("scalar", 3)
    assert (device.isa, device.num_threads) == ("scalar", 3)
    for threads in (0, -1, 1025):
        with pytest.raises(ValueError, match=rf"num_threads must be in 1\.\.1024, got {threads}"):
            _core.CpuDevice("scalar", threads)


def test_available_cpus_stay_within_the_affinity_mask() -> None:
    assert 1 <= _core.available_cpus() <= len(os.sched_getaffinity(0))
