"""The slow, obvious sampler: float64, full sorts, plain running sums; and its own Philox."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]

# float32 weights of scaled logits down to -87: each is off by at most 87 * 2^-23 or so.
ROUNDING = 2e-5


@dataclass(frozen=True)
class Params:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ k0, p1 & 0xFFFFFFFF, p0 >> 32 ^ c3 ^ k1, p0 & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def uniform(seed: int, position: int) -> float:
    words = philox4x32((position & 0xFFFFFFFF, position >> 32, 0, 0), (seed & 0xFFFFFFFF, seed >> 32))
    return (((words[1] << 32 | words[0]) >> 12) + 0.5) / 2.0**52


def order_of(logits: Logits) -> npt.NDArray[np.int64]:
    """Ids, best first: larger logits, then smaller ids."""
    return np.argsort(-logits.astype(np.float64), kind="stable")


def weights_of(logits: Logits, temperature: float) -> npt.NDArray[np.float64]:
    scaled: npt.NDArray[np.float64] = (logits.astype(np.float64) - float(logits.max())) / float(np.float32(temperature))
    return np.exp(scaled)


def log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    """In float64, but -inf below the least float32."""
    centred = logits.astype(np.float64) - float(logits.max())
    logprobs = centred - np.log(np.exp(centred).sum())
    result: npt.NDArray[np.float64] = np.where(logprobs < float(np.finfo(np.float32).min), -np.inf, logprobs)
    return result


def num_kept(logits: Logits, params: Params, slack: float) -> int:
    """How many of the best tokens pass; slack moves the two thresholds that rounding could touch."""
    order = order_of(logits)
    weights = weights_of(logits, params.temperature)[order]
    tied = int((logits == logits.max()).sum())
    kept = max(tied, int((weights >= float(np.float32(params.min_p)) * (1 - slack)).sum()))
    if params.top_k > 0:
        kept = min(kept, params.top_k)
    if params.top_p < 1:
        sums = np.cumsum(weights[:kept])
        target = sums[-1] * (float(np.float32(params.top_p)) + slack)
        kept = min(kept, 1 + int((sums < target).sum()))
    return kept


def may_sample(logits: Logits, params: Params, position: int, token_id: int) -> bool:
    """Whether the token is the draw at uniform(seed, position), rounding at the edges allowed."""
    if params.temperature == 0:
        return token_id == int(order_of(logits)[0])
    u = uniform(params.seed, position)
    order = order_of(logits)
    weights = weights_of(logits, params.temperature)
    for kept in range(num_kept(logits, params, -ROUNDING), num_kept(logits, params, ROUNDING) + 1):
        ids = np.sort(order[:kept])
        sums = np.cumsum(weights[ids]) / weights[ids].sum()
        place = int(np.searchsorted(ids, token_id))
        if place < kept and ids[place] == token_id:
            before = sums[place - 1] if place > 0 else 0.0
            if before - ROUNDING <= u <= sums[place] + ROUNDING:
                return True
    return False
