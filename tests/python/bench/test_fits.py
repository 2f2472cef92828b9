"""Lines through measurements, against numpy's least squares."""

from __future__ import annotations

import numpy as np
import pytest
from fits import Line
from hypothesis import given
from hypothesis import strategies as st


@given(
    st.lists(st.integers(1, 1000), min_size=3, max_size=12, unique=True),
    st.floats(0.01, 100.0),
    st.floats(0.001, 10.0),
    st.randoms(use_true_random=False),
)
def test_the_fit_is_that_of_weighted_least_squares(xs: list[int], fixed: float, slope: float, noise: object) -> None:
    ys = [(fixed + slope * x) * noise.uniform(0.8, 1.25) for x in xs]  # type: ignore[attr-defined]
    line = Line.fit(xs, ys)
    expected_slope, expected_fixed = np.polyfit(xs, ys, 1, w=1 / np.array(ys))
    assert line.slope == pytest.approx(expected_slope, rel=1e-6, abs=1e-9)
    assert line.fixed == pytest.approx(expected_fixed, rel=1e-6, abs=1e-6 * max(ys))
    assert line.r2 <= 1.0 + 1e-9


def test_points_on_a_line_are_explained_whole_and_scattered_ones_are_not() -> None:
    exact = Line.fit([1, 2, 4, 8], [3.0, 5.0, 9.0, 17.0])
    assert [exact.fixed, exact.slope, exact.r2] == pytest.approx([1.0, 2.0, 1.0])
    assert Line.fit([1, 2, 4, 8], [3.0, 9.0, 2.0, 5.0]).r2 < 0.3


@pytest.mark.parametrize(("xs", "ys"), [([], []), ([1, 1], [1.0, 2.0]), ([1, 2], [1.0, 0.0])])
def test_what_has_no_line_is_refused(xs: list[int], ys: list[float]) -> None:
    with pytest.raises(ValueError, match="two different xs and positive ys"):
        Line.fit(xs, ys)
