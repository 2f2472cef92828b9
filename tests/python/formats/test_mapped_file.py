from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from fastpaged.errors import ModelFormatError
from fastpaged.formats.mapped_file import MappedFile

if TYPE_CHECKING:
    from pathlib import Path


def test_views_are_the_bytes_of_the_file_and_outlive_it(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(bytes(range(100)))
    file = MappedFile(path)
    view = file.view(10, 5)
    path.unlink()
    file.check_unchanged()
    del file
    assert view.tolist() == [10, 11, 12, 13, 14]
    assert not view.flags.writeable


@pytest.mark.parametrize("size", [0, 99, 101])
def test_a_file_that_changes_its_size_while_it_is_read_is_refused_and_not_touched(tmp_path: Path, size: int) -> None:
    path = tmp_path / "model"
    path.write_bytes(bytes(100))
    file = MappedFile(path)
    os.truncate(path, size)
    expected = re.escape(
        f"{path}: size: expected 100 bytes, as when it was opened, found {size}: it changed while it was read"
    )
    with pytest.raises(ModelFormatError, match=expected):
        file.view(0, 10)
    with pytest.raises(ModelFormatError, match=expected):
        file.check_unchanged()
