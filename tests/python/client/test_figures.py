"""Every figure of a run of which each time is known."""

from __future__ import annotations

import pytest

from fastpaged.client.figure_rows import figure_rows
from fastpaged.client.figures import METRICS, details, figures, parse_goodput
from fastpaged.client.load import Run
from fastpaged.client.sample import Sample
from fastpaged.errors import InvalidRequestError


def answered(sent: float, *token_times: float, tokens: int | None = None) -> Sample:
    num_output = len(token_times) if tokens is None else tokens
    return Sample(sent, token_times[-1], 10, num_output, list(token_times), ["x"] * len(token_times))


# The clock began at 100. Times to first token 0.5, 0.25, 1; between tokens 0.25 and 0.75, 0.5.
A = answered(100.0, 100.5, 100.75, 101.5)
B = answered(100.5, 100.75, 101.25)
C = answered(102.0, 103.0, tokens=1)
FAILED = Sample(100.25, 104.0, 10, 2, [101.0, 102.0], ["x", "x"], error="the server answered 503: full")
RUN = Run([A, B, C, FAILED], 100.0)


def test_counts_and_rates() -> None:
    values = figures(RUN, metrics=(), percentiles=())
    assert values == {
        "duration": 4.0,
        "completed": 3,
        "failed": 1,
        "failures": {"the server answered 503: full": 1},
        "total_input_tokens": 30,
        "total_output_tokens": 6,
        "request_throughput": 0.75,
        "request_goodput": None,
        "output_throughput": 1.5,
        "total_token_throughput": 9.0,
        "max_output_tokens_per_s": 3.0,  # in the first second: two of A, one of B
        "max_concurrent_requests": 3,  # A, B and the one that failed
    }


def test_means_medians_and_deviations() -> None:
    values = figures(RUN, metrics=METRICS, percentiles=())
    assert values["mean_ttft_ms"] == pytest.approx(1750 / 3)
    assert values["median_ttft_ms"] == 500
    assert values["std_ttft_ms"] == pytest.approx(((83.3333**2 + 333.3333**2 + 416.6667**2) / 3) ** 0.5, rel=1e-6)
    assert (values["mean_itl_ms"], values["median_itl_ms"]) == (500, 500)  # 250, 750, 500
    assert (values["mean_tpot_ms"], values["median_tpot_ms"]) == (500, 500)  # 1000 / 2, 500 / 1
    assert values["mean_e2el_ms"] == pytest.approx((1500 + 750 + 1000) / 3)
    assert values["median_e2el_ms"] == 1000


def test_percentiles_lie_between_the_nearest_ranks_and_are_called_as_they_are_asked() -> None:
    values = figures(RUN, metrics=["ttft", "itl"], percentiles=[25.0, 50.0, 99.0, 99.9])
    assert values["p25_ttft_ms"] == 375  # of 250, 500, 1000
    assert values["p50_ttft_ms"] == 500
    assert values["p99_ttft_ms"] == pytest.approx(990)
    assert values["p99.9_ttft_ms"] == pytest.approx(999)
    assert values["p99_itl_ms"] == pytest.approx(745)  # of 250, 500, 750
    assert "p99_tpot_ms" not in values


def test_every_hundredth_value_is_its_percentile() -> None:
    run = Run([answered(0.0, index / 1000) for index in range(1, 102)], 0.0)
    values = figures(run, metrics=["ttft"], percentiles=[float(percent) for percent in range(1, 100)])
    assert [values[f"p{percent}_ttft_ms"] for percent in range(1, 100)] == pytest.approx(range(2, 101))


def test_goodput_counts_requests_that_kept_every_limit() -> None:
    def goodput(**limits: float) -> float:
        return float(figures(RUN, metrics=(), percentiles=(), goodput=limits)["request_goodput"])

    assert goodput(ttft=500) == 2 / 4  # the limit itself is kept
    assert goodput(ttft=499) == 1 / 4
    assert goodput(ttft=1000, tpot=499) == 1 / 4  # C has no time per token, and exceeds none
    assert goodput(ttft=500, e2el=800) == 1 / 4
    assert goodput(e2el=1) == 0


def test_the_busiest_second_counts_tokens_not_events() -> None:
    run = Run([answered(0.0, 0.5, 2.5, 2.75, tokens=12), answered(0.0, 2.0)], 0.0)
    assert figures(run, metrics=(), percentiles=())["max_output_tokens_per_s"] == 9.0  # 4 per event, 2 events, and one


def test_an_answer_that_ends_as_another_is_sent_makes_room_for_it() -> None:
    run = Run([answered(0.0, 1.0), answered(1.0, 2.0), answered(1.5, 3.0)], 0.0)
    assert figures(run, metrics=(), percentiles=())["max_concurrent_requests"] == 2


def test_a_run_in_which_everything_failed_has_figures_too() -> None:
    run = Run([Sample(0.0, 2.0, 5, error="a"), Sample(0.0, 1.0, 5, error="b"), Sample(0.0, 1.0, 5, error="b")], 0.0)
    values = figures(run, metrics=METRICS, percentiles=[99.0], goodput={"ttft": 1.0})
    assert (values["completed"], values["failed"], values["total_input_tokens"]) == (0, 3, 0)
    assert list(values["failures"].items()) == [("b", 2), ("a", 1)]  # most frequent first
    assert (values["request_goodput"], values["p99_ttft_ms"], values["mean_itl_ms"]) == (0.0, None, None)
    assert figure_rows(values, METRICS, [99.0])[-4:] == [f"{'Failures':-^50}", "2 x b", "1 x a", "=" * 50]


def test_details_are_in_the_order_of_the_requests() -> None:
    values = details(RUN)
    assert values["start_times"] == [0.0, 0.5, 2.0, 0.25]
    assert values["ttfts"] == [0.5, 0.25, 1.0, 0.75]
    assert values["itls"] == [[0.25, 0.75], [0.5], [], [1.0]]
    assert values["latencies"] == [1.5, 0.75, 1.0, 3.75]
    assert values["input_lens"] == [10] * 4
    assert values["output_lens"] == [3, 2, 1, 2]
    assert values["generated_texts"] == ["xxx", "xx", "x", "xx"]
    assert values["errors"] == ["", "", "", "the server answered 503: full"]
    assert values["queue_times"] == [0.0] * 4


def test_rows_are_called_as_people_know_them() -> None:
    values = figures(RUN, metrics=["ttft", "itl"], percentiles=[99.0], goodput={"ttft": 500})
    rows = figure_rows({**values, "request_rate": 2.0, "max_concurrency": None}, ["ttft", "itl"], [99.0])
    assert (
        "\n".join(rows)
        == """\
============ Serving Benchmark Result ============
Successful requests:                    3
Failed requests:                        1
Request rate configured (RPS):          2.00
Benchmark duration (s):                 4.00
Total input tokens:                     30
Total generated tokens:                 6
Request throughput (req/s):             0.75
Request goodput (req/s):                0.50
Output token throughput (tok/s):        1.50
Peak output token throughput (tok/s):   3.00
Peak concurrent requests:               3
Total token throughput (tok/s):         9.00
---------------Time to First Token----------------
Mean TTFT (ms):                         583.33
Median TTFT (ms):                       500.00
P99 TTFT (ms):                          990.00
---------------Inter-token Latency----------------
Mean ITL (ms):                          500.00
Median ITL (ms):                        500.00
P99 ITL (ms):                           745.00
---------------------Failures---------------------
1 x the server answered 503: full
=================================================="""
    )


def test_limits_of_goodput_are_read_with_commas_and_apart() -> None:
    assert parse_goodput(["ttft:200,tpot:50"]) == parse_goodput(["ttft:200", "tpot:50"]) == {"ttft": 200, "tpot": 50}
    for text in ("", "ttft", "ttft:", "ttft:x", "ttft:0", "ttft:-1", "ttft:nan", "itl:5", "ttft:1,"):
        with pytest.raises(InvalidRequestError, match="--goodput must be NAME:MS"):
            parse_goodput([text])
