"""Beams as transformers finds them, in float32: what run_beams.py holds fastpaged's against.

Half of the prompts are questions that the model answers and ends by itself; the other half is prose, where a full stop
ends a beam too: so hypotheses finish all along the way, with one token that ends them and with two. Answers are kept in
a folder, and found again by what they depend on.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from passages import passages
from real_models import transformers_model
from remembered_forward import RememberedForward

from fastpaged.tokenizer import load_tokenizer

WIDTHS = (2, 4, 6)
LENGTH_PENALTIES = (0.6, 1.0, 1.4)
EARLY_STOPPING: tuple[bool | Literal["never"], ...] = (False, True, "never")
NUM_TOKENS = 48

QUESTIONS = (
    "What is the capital of France?",
    "How many days are there in a week?",
    "What colour is the sky on a clear day?",
    "Name an animal that lives in the sea.",
    "What is 2 + 3?",
    "Say hello in Spanish.",
    "Which planet do we live on?",
    "What do bees make?",
    "Is ice hot or cold? Answer with one word.",
    "Write the first line of a poem about the rain.",
)


@dataclass(frozen=True)
class Case:
    """One way to search."""

    width: int
    length_penalty: float
    early_stopping: bool | Literal["never"]

    def name(self) -> str:
        """For a table."""
        return f"width {self.width}, length penalty {self.length_penalty}, early stopping {self.early_stopping}"


@dataclass(frozen=True)
class BeamPrompts:
    """Prompts that the same tokens end."""

    prompts: tuple[tuple[int, ...], ...]
    end_token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Beam:
    """An answer without its prompt, the token that ended it included; its score: see BeamParams of the core."""

    tokens: tuple[int, ...]
    score: float


Answers = list[list[Beam]]  # of each prompt its beams, best first


def all_cases() -> list[Case]:
    """Width by width."""
    return [Case(w, penalty, early) for w in WIDTHS for penalty in LENGTH_PENALTIES for early in EARLY_STOPPING]


def prompts_of(path: str) -> list[BeamPrompts]:
    """10 questions; 10 beginnings of passages, of 6 to 87 tokens."""
    tokenizer = load_tokenizer(path)
    ends = tuple(sorted(tokenizer.eos_token_ids))
    questions = [
        tuple(tokenizer.encode(tokenizer.apply_chat_template([{"role": "user", "content": question}])))
        for question in QUESTIONS
    ]
    prose = [tuple(tokenizer.encode(text)[: 6 + 9 * i]) for i, text in enumerate(passages())]
    full_stop = tokenizer.encode("a full stop.")[-1]
    return [BeamPrompts(tuple(questions), ends), BeamPrompts(tuple(prose), (*ends, full_stop))]


class TransformersBeams:
    """The model in float32, loaded when it is first needed, and the answers that are kept in `folder`."""

    def __init__(self, path: str, folder: Path) -> None:
        self._path = path
        self._folder = folder
        self._model: Any = None
        self._remembered: RememberedForward
        self._width = 0  # of the searches that are remembered

    def answers(self, case: Case, asked: BeamPrompts, num_tokens: int = NUM_TOKENS) -> Answers:
        """From the folder, or else searched for now, all prompts in one batch."""
        kept = self._folder / f"{self._key(case, asked, num_tokens)}.json"
        if kept.is_file():
            rows = json.loads(kept.read_text(encoding="utf-8"))["answers"]
            return [[Beam(tuple(tokens), score) for tokens, score in beams] for beams in rows]
        answers = self._search(case, asked, num_tokens)
        self._folder.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(".part")
        rows = [[(beam.tokens, beam.score) for beam in beams] for beams in answers]
        part.write_text(json.dumps({"case": asdict(case), "answers": rows}) + "\n", encoding="utf-8")
        part.replace(kept)
        return answers

    def score(self, case: Case, prompt: Sequence[int], tokens: Sequence[int]) -> float:
        """What these tokens are worth after the prompt, read off one pass over both."""
        with torch.no_grad():
            logits = self._loaded()(torch.tensor([[*prompt, *tokens[:-1]]]), logits_to_keep=len(tokens)).logits[0]
        logprobs = torch.log_softmax(logits.double(), -1)
        total = float(logprobs[torch.arange(len(tokens)), torch.tensor(tokens)].sum())
        return total / len(tokens) ** case.length_penalty

    def _search(self, case: Case, asked: BeamPrompts, num_tokens: int) -> Answers:
        longest = max(map(len, asked.prompts))
        padding = asked.end_token_ids[0]
        ids = [[padding] * (longest - len(prompt)) + list(prompt) for prompt in asked.prompts]
        mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in asked.prompts]
        model = self._loaded()
        if case.width != self._width:
            self._remembered.forget()
            self._width = case.width
        search = functools.partial(
            model.generate,
            input_ids=torch.tensor(ids),
            attention_mask=torch.tensor(mask),
            num_beams=case.width,
            num_return_sequences=case.width,
            length_penalty=case.length_penalty,
            early_stopping=case.early_stopping,
            max_new_tokens=num_tokens,
            do_sample=False,
            eos_token_id=list(asked.end_token_ids),
            pad_token_id=padding,
            return_dict_in_generate=True,
            output_scores=True,  # or there are no scores of the sequences either
        )
        found = self._remembered.run(search)
        lengths = (found.beam_indices >= 0).sum(dim=1).tolist()
        rows = zip(found.sequences[:, longest:].tolist(), lengths, found.sequences_scores.tolist(), strict=True)
        beams = [Beam(tuple(tokens[:length]), score) for tokens, length, score in rows]
        return [beams[i : i + case.width] for i in range(0, len(beams), case.width)]

    def _loaded(self) -> Any:
        if self._model is None:
            self._model = transformers_model(self._path, torch.float32)
            self._remembered = RememberedForward(self._model)
        return self._model

    def _key(self, case: Case, asked: BeamPrompts, num_tokens: int) -> str:
        files = sorted(Path(self._path).iterdir()) if Path(self._path).is_dir() else [Path(self._path)]
        parts = [
            *(f"{file.name} {file.stat().st_size}" for file in files),
            *(torch.__version__, transformers.__version__),
            json.dumps([asdict(case), asdict(asked), num_tokens]),
        ]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]
