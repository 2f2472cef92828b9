"""TorchBatch: the flat arrays of a step, as torch tensors."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True)
class TorchBatch:
    """T tokens, S sequences, R sampled rows; int64 tensors of one device.

    Sequence s owns the tokens query_start[s] to query_start[s + 1], the last of the context_lens[s] tokens it has so
    far. Position p of it lies in block block_tables[s, p // block_size].
    """

    token_ids: torch.Tensor  # [T]
    positions: torch.Tensor  # [T]
    slot_mapping: torch.Tensor  # [T]: block * block_size + offset
    query_start: torch.Tensor  # [S + 1]
    context_lens: torch.Tensor  # [S]
    block_tables: torch.Tensor  # [S, max_blocks]; what lies beyond a sequence's blocks is never read
    sample_rows: torch.Tensor  # [R]: rows of the step

    def __post_init__(self) -> None:
        num_tokens, num_sequences = len(self.token_ids), len(self.context_lens)
        expected = {
            "positions": (num_tokens,),
            "slot_mapping": (num_tokens,),
            "query_start": (num_sequences + 1,),
            "block_tables": (num_sequences, self.block_tables.shape[-1]),
        }
        for name, shape in expected.items():
            if tuple(getattr(self, name).shape) != shape:
                raise ValueError(f"{name} must have shape {list(shape)}, got {list(getattr(self, name).shape)}")

    @classmethod
    def of(cls, arrays: Any, device: torch.device | str = "cpu") -> TorchBatch:
        """Copies the arrays of these names from `arrays`: NumPy arrays, a core Batch's or anybody's."""

        def tensor(array: npt.NDArray[np.int32]) -> torch.Tensor:
            return torch.tensor(array, dtype=torch.int64, device=device)

        return cls(**{field.name: tensor(getattr(arrays, field.name)) for field in fields(cls)})
