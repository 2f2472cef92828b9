"""Usage: the tokens that a call has used, as its answer tells them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastpaged.outputs import RequestOutput


class Usage:
    """Added up over the outputs of a call's requests.

    prompt_tokens: each prompt once, whatever n. completion_tokens: of the choices that are shown.
    """

    def __init__(self) -> None:
        self._prompts: dict[int, tuple[int, int]] = {}  # by request: tokens, those of them found in the cache
        self.completion_tokens = 0

    def note(self, index: int, output: RequestOutput, *, counts_answers: bool = True) -> None:
        """index: which request of the call. With deltas, every one of its outputs; else its last."""
        self._prompts[index] = (len(output.prompt_token_ids), output.num_cached_tokens)
        for answer in output.outputs if counts_answers else ():
            self.completion_tokens += len(answer.token_ids)

    def body(self) -> dict[str, Any]:
        """What a client gets."""
        prompt_tokens = sum(tokens for tokens, _ in self._prompts.values())
        return {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(cached for _, cached in self._prompts.values())},
        }
