"""RandomPrompts: prompts that mean nothing, of exactly so many tokens, the same for the same seed."""

from __future__ import annotations

import random

from fastpaged.client.bench_request import BenchRequest
from fastpaged.errors import InvalidRequestError

BLOCK_TOKENS = 512  # what an id of a trace's prefixes stands for
_SPECIAL_PART = 16  # this part of the vocabulary at either end, where special tokens are, is left out
# Each is one token of most vocabularies, with the space before it.
_WORDS = (
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not", "he",
    "his", "but", "at", "are", "this", "have", "from", "or", "had", "an", "they", "which", "one", "you", "were",
    "all", "her", "she", "there", "would", "their", "we", "him", "been", "has", "when", "who", "will", "no", "more",
    "if", "out", "so", "up", "said", "what", "its", "about", "than", "into", "them", "can", "only", "other", "time",
    "new", "some", "could", "these", "two", "may", "first", "then", "do", "any", "like", "my", "now", "over", "such",
    "our", "man", "me", "even", "most", "made", "after", "also", "did", "many", "off", "before", "must", "well",
    "back", "through", "years", "where", "much", "your", "way", "down", "should", "because", "long", "each", "just",
    "state", "those", "people", "too", "good", "make", "very", "world", "still", "see", "own", "work", "men", "day",
    "under", "water", "part", "use",
)  # fmt: skip


class RandomPrompts:
    """Token ids of a vocabulary, or words where a server takes nothing else (as_text), about a token each."""

    def __init__(self, seed: int, vocab_size: int, *, as_text: bool) -> None:
        if vocab_size < _SPECIAL_PART:
            raise InvalidRequestError(f"--random-vocab-size must be at least {_SPECIAL_PART}, got {vocab_size}")
        self._seed = seed
        self._ids = range(vocab_size // _SPECIAL_PART, vocab_size - vocab_size // _SPECIAL_PART)
        self._as_text = as_text

    def prompt(self, key: object, num_tokens: int) -> str | list[int]:
        """Another for another key."""
        rng = random.Random(f"{self._seed}:{key}")
        return " ".join(rng.choices(_WORDS, k=num_tokens)) if self._as_text else rng.choices(self._ids, k=num_tokens)

    def prompt_of_blocks(self, key: object, block_ids: list[str], num_tokens: int) -> str | list[int]:
        """One that begins with the blocks of these ids, of BLOCK_TOKENS tokens each, as every other with these ids
        does; what is left is its own."""
        parts = [self.prompt(f"block {block}", BLOCK_TOKENS) for block in block_ids]
        left = num_tokens - BLOCK_TOKENS * len(parts)
        if left > 0:
            parts.append(self.prompt(key, left))
        if self._as_text:
            return " ".join(" ".join(str(part) for part in parts).split(" ")[:num_tokens])
        return [int(token_id) for part in parts for token_id in part][:num_tokens]


def random_requests(
    prompts: RandomPrompts, seed: int, count: int, input_len: int, output_len: int, range_ratio: float
) -> list[BenchRequest]:
    """Lengths are uniform between 1 - range_ratio and 1 + range_ratio times the given ones, and at least 1."""
    for name, value in (("--random-input-len", input_len), ("--random-output-len", output_len)):
        if value < 1:
            raise InvalidRequestError(f"{name} must be at least 1, got {value}")
    if not 0 <= range_ratio < 1:
        raise InvalidRequestError(f"--range-ratio must be at least 0 and below 1, got {range_ratio}")
    rng = random.Random(f"lengths:{seed}")

    def length(mean: int) -> int:
        return max(1, rng.randint(round(mean * (1 - range_ratio)), round(mean * (1 + range_ratio))))

    lengths = [(length(input_len), length(output_len)) for _ in range(count)]
    return [BenchRequest(prompts.prompt(index, i), i, o) for index, (i, o) in enumerate(lengths)]
