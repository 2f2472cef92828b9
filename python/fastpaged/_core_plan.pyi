"""What fastpaged._core's scheduler takes and plans (bind_policy.cc, bind_plan.cc). Only for readers and type checkers:
no module of this name exists at run time."""

from collections.abc import Iterator, Sequence
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

class SchedulerPolicy:
    """All that scheduling policies differ in. Read-only; the defaults are the engine's.

    preemption_mode: what becomes of a preempted request's K and V. "recompute": forgotten, and computed again as one
        prompt. "swap": copied to the host pool and back; recomputed where that has no room. "by_branches": recompute a
        request of one sequence, swap one of several. "auto": what costs less for each, by PreemptionCosts.
    chunked_prefill: whether a prompt may be computed over several steps.
    long_prefill_token_threshold: most tokens of one sequence in one step; 0 is no limit.
    watermark: share of the pool's blocks, in [0, 1), that stay free when a request is let in beside others.
    counts_running_needs: who is let in leaves room for all that running requests still lack of their known tokens.
    block_per_branch: a branch counts as one more block where growth is concerned, needed or not.
    swapped_before_waiting: swapped requests come back before any waiting one is looked at.
    resume_grace_steps: a request that came back after a preemption keeps its blocks for so many steps; 0 is none.
    by_priority: the line is in order of priority, smaller first, then of arrival; a strictly better priority preempts.
    ageing_steps: with by_priority, who has waited for so many steps goes first; 0: nobody ages.
    prefill_share: most tokens in a step of prompts that it does not complete, while others decode or could come in; 0
        is no limit.
    """

    def __init__(
        self,
        *,
        preemption_mode: str = "by_branches",
        chunked_prefill: bool = True,
        long_prefill_token_threshold: int = 0,
        watermark: float = 0.01,
        counts_running_needs: bool = True,
        block_per_branch: bool = False,
        swapped_before_waiting: bool = False,
        resume_grace_steps: int = 0,
        by_priority: bool = False,
        ageing_steps: int = 0,
        prefill_share: int = 0,
    ) -> None: ...
    @staticmethod
    def paper_2023() -> SchedulerPolicy:
        """Section 4.5 of the paper."""
    preemption_mode: Final[str]
    chunked_prefill: Final[bool]
    long_prefill_token_threshold: Final[int]
    watermark: Final[float]
    counts_running_needs: Final[bool]
    block_per_branch: Final[bool]
    swapped_before_waiting: Final[bool]
    resume_grace_steps: Final[int]
    by_priority: Final[bool]
    ageing_steps: Final[int]
    prefill_share: Final[int]

class PreemptionCosts:
    """What moving and computing cost, in seconds; for preemption_mode "auto"."""

    def __init__(
        self, *, seconds_per_token: float = 0.0, seconds_per_block_out: float = 0.0, seconds_per_block_in: float = 0.0
    ) -> None: ...
    seconds_per_token: Final[float]
    seconds_per_block_out: Final[float]
    seconds_per_block_in: Final[float]

class RequestCost:
    """What preemptions have cost one request. Read-only. Copied blocks, not entries of tables."""

    num_preemptions: Final[int]
    num_tokens_recomputed: Final[int]
    num_blocks_swapped_out: Final[int]
    num_blocks_swapped_in: Final[int]

class Quarantine:
    """What was wrong after a broken invariant, a line each, and who had to go for it. Read-only.

    found: empty if nothing was wrong. failed: group ids of requests that have gone, with no event. events: of the
        others, from an update() that raised, whose rows are those of the result it was given.
    """

    found: Final[list[str]]
    failed: Final[list[int]]
    events: Final[StepEvents]

class SchedulerStats:
    """What preemption and sharing have cost since the scheduler was made, plans that were never carried out included.

    num_preemptions: of requests, by either means. num_tokens_recomputed: counted when they have been computed again.
    num_prefix_tokens_*: of prompts let in for the first time; what comes back after a preemption is not among them.
    num_partial_prefix_blocks: copied because their beginning alone was found; they are in num_blocks_copied_on_write,
        or in num_prefix_blocks_promoted, too. num_cached_blocks_evicted: handed out with what they held, which may live
        on on the host. num_pins_released: for want of room.
    num_blocks_swapped_*: of requests. What the prefix cache has copied between the tiers is beside them:
        num_prefix_blocks_demoted to the host when the device evicted it, num_prefix_blocks_promoted back when it was
        found. num_host_prefix_tokens_found: of num_prefix_tokens_found. num_host_cached_blocks_evicted: for good.
    """

    num_preemptions: Final[int]
    num_groups_swapped_out: Final[int]
    num_groups_swapped_in: Final[int]
    num_blocks_swapped_out: Final[int]
    num_blocks_swapped_in: Final[int]
    num_blocks_copied_on_write: Final[int]
    num_tokens_recomputed: Final[int]
    num_prefix_tokens_looked_up: Final[int]
    num_prefix_tokens_found: Final[int]
    num_partial_prefix_blocks: Final[int]
    num_cached_blocks_evicted: Final[int]
    num_prefix_blocks_demoted: Final[int]
    num_prefix_blocks_promoted: Final[int]
    num_host_prefix_tokens_found: Final[int]
    num_host_cached_blocks_evicted: Final[int]
    num_pins_released: Final[int]

class SamplingParams:
    def __init__(
        self,
        *,
        temperature: float,
        top_p: float,
        top_k: int,
        min_p: float,
        seed: int,
        num_logprobs: int | None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repetition_penalty: float = 1.0,
        min_tokens: int = 0,
        logit_bias: dict[int, float] = ...,
        allowed_token_ids: Sequence[int] | None = None,
        end_token_ids: Sequence[int] = (),
        bad_words: Sequence[Sequence[int]] = (),
        num_prompt_logprobs: int | None = None,
        beam_width: int | None = None,
        length_penalty: float = 1.0,
        early_stopping: bool | Literal["never"] = False,
        num_candidates: int = 0,
        has_stop_strings: bool = False,
    ) -> None:
        """end_token_ids may not come before min_tokens. bad_words: each as its tokens.

        beam_width: the request's tokens are not sampled, its likeliest continuations are searched for. All that
            follow are of that search, and ignored without one. num_candidates: max(2, 1 + number of end tokens) x
            beam_width. has_stop_strings: Scheduler.finish_beams() says after each step which beams have stopped, and
            only then is it asked whether the search is over.
        """
    scores_prompt: Final[bool]
    @property
    def beams(self) -> dict[str, int | float | bool | str] | None:
        """The arguments from beam_width on; None without one."""

class FinishReason:
    """Enum: STOP, LENGTH, ABORT, ERROR, DEADLINE, QUEUE_TIMEOUT."""

    __members__: dict[str, FinishReason]
    STOP: FinishReason
    LENGTH: FinishReason
    ABORT: FinishReason
    ERROR: FinishReason
    DEADLINE: FinishReason
    QUEUE_TIMEOUT: FinishReason
    name: Final[str]

class EventKind:
    """Enum: SAMPLE (a branch went on, or ended), BEAM, HYPOTHESIS and RESULT of a beam search."""

    __members__: dict[str, EventKind]
    SAMPLE: EventKind
    BEAM: EventKind
    HYPOTHESIS: EventKind
    RESULT: EventKind
    name: Final[str]

class SequenceEvent:
    """Read-only. token_id and sample_row are None without a token; finish_reason is None while unfinished.

    kind: SAMPLE but for beams; parent_id: the sequence it grew from, mostly itself; branch: which of its request's
        samples, or the rank of a live beam or a result; score: of beams (see scheduler_output.h).
    score_rows: (first, count) of the rows that say the logprobs of the prompt's next tokens, in their order; None
        without any. An event may have no more than that.
    """

    kind: Final[EventKind]
    group_id: Final[int]
    sequence_id: Final[int]
    parent_id: Final[int]
    branch: Final[int]
    score: Final[float]
    token_id: Final[int | None]
    sample_row: Final[int | None]
    score_rows: Final[tuple[int, int] | None]
    finish_reason: Final[FinishReason | None]
    @property
    def group_finished(self) -> bool:
        """This sequence was the last of its request."""

class StepEvents:
    """What a step did, in order. packed, 12 fields of 8 bytes an event: group_id, sequence_id, token_id (-1: none),
    sample_row, both numbers of score_rows, finish_reason (place in FinishReason; -1: unfinished), group_finished,
    kind (place in EventKind), parent_id, branch, score (a double)."""

    packed: Final[bytes]
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[SequenceEvent]: ...

class SchedulerOutput:
    @property
    def scheduled(self) -> list[tuple[int, int, int]]:
        """(group_id, first_token, num_tokens) of each sequence in this step."""
    @property
    def scheduled_sequences(self) -> list[int]:
        """The sequence ids, in the order of scheduled."""
    @property
    def result_counts(self) -> list[tuple[int, int]]:
        """(scores, draws) of each: how many of the sampler's results are its own, in that order."""
    @property
    def copies(self) -> list[tuple[str, int, int, int]]:
        """(kind, source, destination, num_blocks), to be run in this order before anything is computed; kind is
        "swap_out" (device to host), "swap_in" (host to device) or "copy_on_write" (device to device)."""
    @property
    def preempted(self) -> list[int]:
        """Group ids; those that were swapped are in swapped_out too."""
    swapped_out: Final[list[int]]
    swapped_in: Final[list[int]]
    @property
    def let_in(self) -> list[int]:
        """Group ids of those that run from this step on, swapped in or new, and were not preempted by it again."""
    @property
    def cached(self) -> list[tuple[int, int]]:
        """(group_id, num_tokens) of each request let in for the first time by this plan: how many of its prompt's
        tokens the prefix cache had."""
    num_tokens: Final[int]
    num_samples: Final[int]
    @property
    def num_rows(self) -> int:
        """Rows of logits: samples, and tokens of prompts whose logprobs are wanted."""
    @property
    def num_results(self) -> int:
        """Of the sampler, as update() wants them: one for each row, but one for each of a request's samples where they
        are all drawn from the prompt's last row."""

class Batch:
    """A step's flat int32 arrays, as read-only numpy views valid until the builder's next build()."""

    token_ids: Final[npt.NDArray[np.int32]]
    positions: Final[npt.NDArray[np.int32]]
    slot_mapping: Final[npt.NDArray[np.int32]]
    query_start: Final[npt.NDArray[np.int32]]
    context_lens: Final[npt.NDArray[np.int32]]
    block_tables: Final[npt.NDArray[np.int32]]
    sample_rows: Final[npt.NDArray[np.int32]]
