"""The real models of the checks against transformers: a .gguf file, or a folder with config.json and safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

Logits = npt.NDArray[np.float32]  # [positions, vocab]


def transformers_model(path: str, dtype: torch.dtype) -> Any:
    """Weights of a GGUF file are dequantised in float32 first: asked for bfloat16, transformers may keep blocks packed
    and compute in float32, which is no bfloat16 model.
    """
    disable_progress_bar()
    place = Path(path).resolve()
    if place.is_dir():
        return AutoModelForCausalLM.from_pretrained(place, dtype=dtype).eval()
    model = AutoModelForCausalLM.from_pretrained(place.parent, gguf_file=place.name, dtype=torch.float32)
    return model.to(dtype).eval()


def transformers_logits(model: Any, token_ids: list[int], num_last: int | None = None) -> Logits:
    """Of every position, or of the last ones only."""
    with torch.no_grad():
        logits: Logits = model(torch.tensor([token_ids]), logits_to_keep=num_last or 0).logits[0].float().numpy()
        return logits
