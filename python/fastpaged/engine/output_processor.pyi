from collections.abc import Callable

from fastpaged._core import SamplerOutput, SchedulerOutput, SequenceEvent
from fastpaged.engine.admission import EngineRequest
from fastpaged.outputs import RequestOutput
from fastpaged.tokenizer import TextStream, Tokenizer

class OutputProcessor:
    def __init__(self, tokenizer: Tokenizer, end_request: Callable[[int], object]) -> None:
        """end_request(group id) takes a request out of the scheduler; it may be there no longer."""

    def __len__(self) -> int:
        """Unfinished requests."""

    def __contains__(self, request_id: str) -> bool: ...
    def add(
        self, group_id: int, request: EngineRequest, seed: int | None, stream: TextStream, final_only: bool = False
    ) -> None:
        """final_only: no output before the last one."""

    def abort(self, request_id: str) -> RequestOutput | None:
        """The request as it stood, finished with "abort"; None if it is not (or no longer) here."""

    def note_plan(self, plan: SchedulerOutput) -> None:
        """Who is scheduled and who is preempted counts from here on, whatever becomes of the step."""

    def process(self, result: SamplerOutput, events: list[SequenceEvent]) -> list[RequestOutput]:
        """One output per request that moved in this step."""
