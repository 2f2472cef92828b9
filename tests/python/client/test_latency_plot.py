"""What is drawn of several runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fastpaged.client.latency_plot import latency_figure, save_plot


def run(rate: float | str, throughput: float, **values: float | None) -> dict[str, Any]:
    return {
        "request_rate": rate,
        "request_throughput": throughput,
        **{f"{name}_ms": values.get(name, 1.0) for name in ("median_ttft", "p99_ttft", "median_itl", "p99_itl")},
    }


FAST = run(4.0, 3.9, median_ttft=20.0, p99_ttft=90.0, median_itl=7.0, p99_itl=9.0)
SLOW = run(1.0, 1.0, median_ttft=10.0, p99_ttft=30.0, median_itl=5.0, p99_itl=6.0)
AT_ONCE = run("inf", 5.0, median_ttft=200.0, p99_ttft=300.0, median_itl=8.0, p99_itl=11.0)


def points(axes: Any) -> dict[str, tuple[list[float], list[float]]]:
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()}


def test_medians_and_99th_percentiles_stand_over_the_rates_in_their_order() -> None:
    ttft, itl = latency_figure([FAST, SLOW, AT_ONCE], "a title").get_axes()
    assert points(ttft)["p50"] == ([1, 4], [10, 20])
    assert points(ttft)["p99"] == ([1, 4], [30, 90])
    assert points(itl)["p50"] == ([1, 4], [5, 7])
    assert points(itl)["p99"] == ([1, 4], [6, 9])
    # All at once: where the server got to.
    assert points(ttft)["_median"] == ([5], [200])
    assert points(itl)["_p99"] == ([5], [11])


def test_values_far_apart_stand_on_a_logarithmic_axis_and_others_on_one_from_zero() -> None:
    far = run(8.0, 5.0, median_ttft=2000.0, p99_ttft=9000.0)
    ttft, itl = latency_figure([SLOW, far], "").get_axes()
    assert (ttft.get_yscale(), itl.get_yscale()) == ("log", "linear")
    assert itl.get_ylim()[0] == 0


@pytest.mark.parametrize(
    "runs", [[SLOW], [AT_ONCE], [SLOW, run(9.0, 0.0, median_ttft=None, p99_ttft=None, median_itl=None, p99_itl=None)]]
)
def test_a_picture_is_written_whatever_there_is_to_draw(runs: list[dict[str, Any]], tmp_path: Path) -> None:
    save_plot(runs, "a title with $ and _", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
