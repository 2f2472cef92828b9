"""The rotary table."""

from __future__ import annotations

import numpy as np
import pytest

from fastpaged.models.rotary import rotary_table


def test_a_row_holds_the_cosines_then_the_sines_of_its_position() -> None:
    table = rotary_table(50, 8, 100.0)
    assert table.shape == (50, 8)
    assert table.dtype == np.float32
    for position in (0, 1, 7, 49):
        angles = [position * 100.0 ** (-i / 4) for i in range(4)]
        np.testing.assert_allclose(table[position], [*np.cos(angles), *np.sin(angles)], atol=1e-5)


def test_a_long_table_is_made_in_pieces_without_a_seam() -> None:
    num_positions = (1 << 18) + 3  # one piece and a bit for a head of two
    table = rotary_table(num_positions, 2, 10000.0)
    positions = np.arange(num_positions, dtype=np.float64)
    np.testing.assert_array_equal(table, np.stack([np.cos(positions), np.sin(positions)], 1).astype(np.float32))


@pytest.mark.parametrize(("head_dim", "theta"), [(64, 100000.0), (128, 500000.0), (16, 10000.0)])
def test_angles_are_those_of_transformers_to_the_last_bit_but_one(head_dim: int, theta: float) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=head_dim, num_attention_heads=1, rope_theta=theta, max_position_embeddings=8192
    )
    oracle = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    cos, sin = oracle(torch.zeros(1, dtype=torch.float32), torch.arange(8192)[None])
    expected = torch.cat([cos[0, :, : head_dim // 2], sin[0, :, : head_dim // 2]], dim=1).numpy()
    np.testing.assert_allclose(rotary_table(8192, head_dim, theta), expected, rtol=0, atol=2**-23)
