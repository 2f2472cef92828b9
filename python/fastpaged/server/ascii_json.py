"""AsciiJSONResponse: JSON of what a client has said, which need not be Unicode that UTF-8 can hold."""

from __future__ import annotations

import json
from typing import Any

from fastapi.responses import JSONResponse


class AsciiJSONResponse(JSONResponse):
    """All beyond ASCII is escaped."""

    def render(self, content: Any) -> bytes:
        """Of starlette."""
        return json.dumps(content).encode("ascii")
