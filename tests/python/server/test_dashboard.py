"""The Grafana dashboard names only metrics that there are."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from server.serving import running_server

BOARD = json.loads((Path(__file__).parents[3] / "dashboards" / "fastpaged.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = BOARD["panels"]
NAME = re.compile(r"fastpaged:[a-z0-9_]+")


def test_every_metric_that_it_names_is_there(tiny_llama: Path) -> None:
    with running_server(tiny_llama) as server:
        server.client.post("/v1/completions", json={"prompt": [5, 6], "max_tokens": 2, "ignore_eos": True})
        families = list(text_string_to_metric_families(server.client.get("/metrics").text))
    there = {sample.name for family in families for sample in family.samples}
    labels = {label for family in families for sample in family.samples for label in sample.labels}
    named = {name for panel in PANELS for target in panel.get("targets", []) for name in NAME.findall(target["expr"])}
    assert len(named) > 20
    assert named <= there, named - there
    grouped = re.findall(r"by \(([^)]*)\)", json.dumps(PANELS))
    assert {label.strip() for group in grouped for label in group.split(",")} <= labels
    assert set(NAME.findall(json.dumps(BOARD["templating"]))) <= there


def test_panels_are_told_apart_and_lie_beside_each_other() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for one, other in combinations(PANELS, 2):
        a, b = one["gridPos"], other["gridPos"]
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        above = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert beside or above, (one["title"], other["title"])
        assert a["x"] + a["w"] <= 24


def test_each_panel_has_a_title_a_unit_and_something_to_show() -> None:
    for panel in PANELS:
        assert panel["title"]
        if panel["type"] != "row":
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert panel["targets"]
            assert all(target["legendFormat"] for target in panel["targets"])
