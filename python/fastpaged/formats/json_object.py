"""JSON within a mapped file, with errors that name the file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from fastpaged.errors import ModelFormatError

if TYPE_CHECKING:
    from fastpaged.formats.mapped_file import MappedFile


def parse_json_object(file: MappedFile, what: str, offset: int, size: int) -> dict[str, object]:
    """The object in the bytes [offset, offset + size) of `file`, which errors call `what`. A name that comes twice,
    in this object or in one within it, is an error: whichever value was taken, it might be the wrong one."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found: dict[str, object] = {}
        for name, value in pairs:
            if name in found:
                raise file.error(what, "every name once", f"{name[:80]!r} twice")
            found[name] = value
        return found

    try:
        content = json.loads(file.map[offset : offset + size].decode("utf-8"), object_pairs_hook=unique)
    except ModelFormatError:
        raise
    except (ValueError, RecursionError) as error:
        raise file.error(what, "JSON in UTF-8", f"{type(error).__name__}: {error}") from None
    if not isinstance(content, dict):
        raise file.error(what, "a JSON object", type(content).__name__)
    return content
