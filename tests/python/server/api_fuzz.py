"""Requests made up from the server's own OpenAPI description, right ones and wrong ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import hypothesis
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.generation.modes import GenerationMode

FINE = {200, 400, 401, 404, 405, 408, 413, 415, 431, 501, 503}


class ApiFuzz:
    """Of one running server. statuses: how often each came."""

    def __init__(self, url: str) -> None:
        self.schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
        self.schema.config.base_url = url
        self.statuses: Counter[int] = Counter()
        self._client = httpx.Client(base_url=url, timeout=120)

    @property
    def operations(self) -> list[Any]:
        found: list[Any] = list(self.schema.get_all_operations())
        return [one.ok() for one in found]

    def run(self, examples: int, progress: Callable[[str], None] = lambda _: None, seed: int | None = None) -> None:
        """So many cases for each operation, half of them meant to be refused. AssertionError for an answer that no
        client should see."""
        for operation in self.operations:
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                progress(f"{operation.label} ({mode})")
                try:
                    strategy = operation.as_strategy(generation_mode=mode)
                    self._run(strategy, examples // 2, seed)
                except Unsatisfiable:
                    pass  # nothing can be wrong with a request that has nothing

    def _run(self, strategy: Any, examples: int, seed: int | None) -> None:
        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=seed is None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=strategy)
        def each(case: Any) -> None:
            self._check(case)

        (each if seed is None else hypothesis.seed(seed)(each))()

    def _check(self, case: Any) -> None:
        arguments = case.as_transport_kwargs()
        response = case.call(timeout=120)
        self.statuses[response.status_code] += 1
        what = f"{case.method} {case.formatted_path} {arguments!r:.2000}: {response.status_code} {response.text[:500]}"
        assert response.status_code in FINE, what
        if response.status_code >= 400 and response.status_code != 401:
            body = response.json()
            assert "status" in body or set(body["error"]) == {"message", "type", "param", "code"}, what
