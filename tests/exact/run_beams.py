"""Beams in float32 against those of transformers: widths 2, 4, 6, length penalties 0.6, 1, 1.4, every early stopping.

    python tests/exact/run_beams.py --model SmolLM2-135M-Instruct.Q4_1.gguf [--isa avx512] [--cache build/beams]

20 prompts, 48 tokens (transformers_beams.py); all beams of an answer are compared, best first. Scores must be those of
transformers +- 1e-3. A beam of other tokens passes only where its score and the score of the one that transformers has
in its place lie less than 1e-4 apart, and transformers itself gives it the score that it is said to have. In no step
may more blocks be copied than there are live beams.

What transformers finds is kept in --cache: later runs are the faster for it. Exits with 1 if
anything differs for no such reason.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers_beams import NUM_TOKENS, Answers, Beam, BeamPrompts, Case, TransformersBeams, all_cases, prompts_of

from fastpaged import LLM, BeamSearchParams, _core
from fastpaged.executor.in_process import InProcessExecutor
from fastpaged.progress import ProgressBar

MAX_SCORE_DIFFERENCE = 1e-3
MAX_GAP = 1e-4  # of the scores of two different beams in one place


class CopyCountingExecutor(InProcessExecutor):
    """Takes the place of an engine's executor, and holds the copies of each step against the beams in it."""

    def __init__(self, llm: LLM) -> None:
        super().__init__(llm.engine.worker, _core.BatchBuilder(llm.engine.scheduler))
        llm.engine._executor = self
        self.most_copies = 0
        self.broken: list[str] = []

    def run(self, plan: _core.SchedulerOutput) -> _core.SamplerOutput:
        """Counts the plan's copies, then runs it."""
        num_copies = sum(count for kind, _, _, count in plan.copies if kind == "copy_on_write")
        num_beams = sum(num_tokens == 1 for _, _, num_tokens in plan.scheduled)
        self.most_copies = max(self.most_copies, num_copies)
        if num_copies > num_beams:
            self.broken.append(f"{num_copies} blocks copied in a step with {num_beams} live beams")
        return super().run(plan)


@dataclass
class Tally:
    """Of one case, all prompts together."""

    num_equal: int = 0
    num_close: int = 0  # other beams that pass
    num_ended: int = 0  # by a token
    worst: float = 0.0  # difference of two scores in one place


def our_answers(llm: LLM, case: Case, asked: BeamPrompts) -> Answers:
    """All prompts at once."""
    params = BeamSearchParams(
        beam_width=case.width,
        max_tokens=NUM_TOKENS,
        length_penalty=case.length_penalty,
        early_stopping=case.early_stopping,
        stop_token_ids=list(asked.end_token_ids),
    )
    outputs = llm.beam_search([{"prompt_token_ids": list(prompt)} for prompt in asked.prompts], params, use_tqdm=False)
    return [[Beam(tuple(beam.output_token_ids), beam.score) for beam in output.sequences] for output in outputs]


def compare(
    case: Case, asked: BeamPrompts, ours: Answers, theirs: Answers, judge: TransformersBeams, tally: Tally
) -> list[str]:
    """Adds to the tally; returns what is wrong."""
    wrong = []
    for number, (our_beams, their_beams) in enumerate(zip(ours, theirs, strict=True)):
        if len(our_beams) != len(their_beams):
            wrong.append(f"prompt {number}: {len(our_beams)} beams, transformers has {len(their_beams)}")
            continue
        for rank, (our, their) in enumerate(zip(our_beams, their_beams, strict=True)):
            place = f"prompt {number}, beam {rank}"
            gap = abs(our.score - their.score)
            tally.worst = max(tally.worst, gap)
            tally.num_ended += our.tokens[-1] in asked.end_token_ids
            if not gap <= MAX_SCORE_DIFFERENCE:
                wrong.append(f"{place}: score {our.score:.6f}, transformers has {their.score:.6f}")
            elif our.tokens == their.tokens:
                tally.num_equal += 1
            elif gap < MAX_GAP and abs(judge.score(case, asked.prompts[number], our.tokens) - our.score) < MAX_GAP:
                tally.num_close += 1
            else:
                wrong.append(f"{place}: other tokens, of scores {gap:.1e} apart: {our} and {their}")
    return wrong


def check_case(
    llm: LLM, judge: TransformersBeams, case: Case, prompts: Sequence[BeamPrompts], bar: ProgressBar | None
) -> bool:
    """Prints a line, and what is wrong."""
    start = time.monotonic()
    executor = CopyCountingExecutor(llm)
    tally, wrong = Tally(), executor.broken
    for asked in prompts:
        ours = our_answers(llm, case, asked)
        wrong += compare(case, asked, ours, judge.answers(case, asked), judge, tally)
    if bar is not None:
        bar.clear()
    print(
        f"{case.name():58} {tally.num_equal:3} beams equal, {tally.num_close} within {MAX_GAP:g}, {tally.num_ended:3} "
        f"ended by a token; scores within {tally.worst:.1e}; at most {executor.most_copies} copies a step"
        f"{'  WRONG' if wrong else ''}  ({time.monotonic() - start:.0f} s)",
        flush=True,
    )
    for line in wrong:
        print(f"    {line}")
    return not wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a .gguf file or a folder")
    parser.add_argument("--isa", choices=_core.supported_isas(), default=_core.supported_isas()[0])
    parser.add_argument("--cache", type=Path, default=Path("build/beams"), help="for the answers of transformers")
    args = parser.parse_args()
    torch.set_num_threads(_core.available_cpus())
    prompts = prompts_of(args.model)
    judge = TransformersBeams(args.model, args.cache)
    bar = ProgressBar(sys.stderr) if sys.stderr.isatty() else None
    cases, good = all_cases(), True
    with LLM(
        args.model,
        isa=args.isa,
        dtype="float32",
        max_model_len=1024,
        max_num_seqs=max(case.width for case in cases) * max(len(asked.prompts) for asked in prompts),
        enable_prefix_caching=False,  # its hits copy blocks too
        packed_cache=False,
    ) as llm:
        for number, case in enumerate(cases):
            if bar is not None:
                bar(case.name(), number, len(cases))
            good = check_case(llm, judge, case, prompts, bar) and good
    print("every beam is that of transformers" if good else "DIFFERENCES FOUND")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
