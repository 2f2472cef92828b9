from collections.abc import Callable, Sequence

from fastpaged._core import SamplerOutput, Scheduler, SchedulerOutput, StepEvents
from fastpaged.engine.admission import EngineRequest
from fastpaged.engine.engine_stats import EngineStats
from fastpaged.outputs import RequestOutput
from fastpaged.tokenizer import TextStream, Tokenizer

class StopStrings:
    """Finds where a text that comes in pieces ends: at the first character that completes one of some strings. Of
    several that it completes, the one listed first counts. How the text is cut into pieces changes nothing."""

    def __init__(self, strings: Sequence[str], included: bool = False) -> None:
        """strings: none is empty. included: what was found stays in the text."""

    def copy(self) -> StopStrings:
        """The same text, to go on in another way."""

    @property
    def found(self) -> str | None:
        """The string that ended the text."""

    @property
    def held(self) -> str:
        """The longest end of the text that begins one of the strings; nothing if they stay in the text."""

    def push(self, text: str, may_stop: bool = True) -> str:
        """The text that may be shown with this piece, nothing once a string was found. A string that is completed
        where may_stop is False is text like any other."""

    def finish(self) -> str:
        """No more will come: what was held back."""

class OutputProcessor:
    def __init__(
        self,
        tokenizer: Tokenizer,
        scheduler: Scheduler,
        stream_interval: int = 1,
        block_bytes: int = 0,
        stats: EngineStats | None = None,
        clock: Callable[[], float] = ...,
    ) -> None:
        """A request that a stop string or a failure ends is taken out of the scheduler at once. stream_interval: tokens
        from one output of a request to the next, where its params have none. block_bytes: of a KV block. stats: to be
        filled. clock: seconds, of requests' metrics."""

    num_waiting: int
    num_waiting_tokens: int
    """Requests that have never been let in, and the tokens of their prompts. Read-only."""

    def __len__(self) -> int:
        """Unfinished requests."""

    def __contains__(self, request_id: str) -> bool: ...
    def request_ids(self) -> dict[int, str]:
        """Of unfinished requests, by group id."""

    def add(
        self,
        group_id: int,
        request: EngineRequest,
        seeds: Sequence[int | None],
        stream: TextStream | None,
        final_only: bool = False,
    ) -> None:
        """seeds: to be shown with each of the request's samples, one for each; a beam search has one entry. stream:
        None for no text at all. final_only: no output before the last one, whatever the params say."""

    def has_begun(self, request_id: str) -> bool:
        """Whether it is here and was let in once."""

    def described(self, group_id: int) -> tuple[str, int] | None:
        """The request's id and how many tokens of it are known; None if it is not (or no longer) here."""

    def request_id(self, group_id: int) -> str | None:
        """None if it is not (or no longer) here."""

    def abort(self, request_id: str, reason: str = "abort") -> RequestOutput | None:
        """The request as it stood (with deltas: what is new) and what was held back, finished with this reason; None if
        it is not (or no longer) here."""

    def fail(self, group_ids: Sequence[int]) -> list[RequestOutput]:
        """Those that the scheduler has failed already: each as it stood, finished with "error"."""

    def note_plan(self, plan: SchedulerOutput) -> None:
        """Who is scheduled and who is preempted counts from here on, whatever becomes of the step."""

    def process(self, result: SamplerOutput | None, events: StepEvents) -> list[RequestOutput]:
        """One output per request that moved in this step, and whose output is due: with all its answers as they stand,
        or with deltas those that are due. What is best of several is known at the end: a request with best_of > n, or
        with a beam search, has that one output. result: None if there are no events."""
