"""The op tables of this build as parameters of tests: one that this CPU cannot run is skipped, and says so."""

from __future__ import annotations

import pytest

from fastpaged import _core


def needs(isa: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(isa not in _core.supported_isas(), reason=f"this CPU cannot run the table '{isa}'")


EVERY_ISA = tuple(pytest.param(isa, marks=needs(isa)) for isa in _core.known_isas())
