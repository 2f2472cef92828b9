"""What other projects call the activations of the op set."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastpaged.config.keys import Keys
    from fastpaged.ops.op_set import ActivationKind


def activation_from_hf(keys: Keys, key: str, default: str) -> ActivationKind:
    """What transformers calls an activation, as the op set calls it."""
    return _ACTIVATIONS[keys.string(key, default, allowed=tuple(_ACTIVATIONS))]


_ACTIVATIONS: dict[str, ActivationKind] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
