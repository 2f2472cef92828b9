"""RememberedForward: a model of transformers whose forward passes over the same tokens are computed once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")


class _NotRememberedError(Exception):
    """A pass that has not been computed yet, where the passes before it were not either: its K and V are not there."""


class RememberedForward:
    """Takes the place of model.forward within generate(). Beam searches that differ only in how they score what has
    finished go over the same beams, so that all but the first of them need no forward pass at all.

    run(search): what search(), which calls model.generate() once, returns: tried with what is remembered, or else run
    anew from its beginning, all passes computed and remembered.
    """

    def __init__(self, model: Any) -> None:
        self._logits: dict[bytes, torch.Tensor] = {}
        self._tokens = b""  # of the pass that comes next: all rows from their beginning, not its last tokens alone
        self._computes = True
        self._prepare, self._forward = model.prepare_inputs_for_generation, model.forward

        @functools.wraps(self._prepare)  # generate() looks at the parameters of both
        def prepare(*args: Any, **kwargs: Any) -> Any:
            return self._note_tokens(*args, **kwargs)

        @functools.wraps(self._forward)
        def forward(*args: Any, **kwargs: Any) -> Any:
            return self._pass(*args, **kwargs)

        model.prepare_inputs_for_generation, model.forward = prepare, forward

    def run(self, search: Callable[[], T]) -> T:
        """See the class."""
        self._computes = False
        try:
            return search()
        except _NotRememberedError:
            self._computes = True
            return search()
        finally:
            self._computes = True

    def forget(self) -> None:
        """Gives the memory back: a row of the vocabulary for each beam and step."""
        self._logits.clear()

    def _note_tokens(self, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        self._tokens = bytes(str(tuple(input_ids.shape)), "ascii") + input_ids.numpy().tobytes()
        return self._prepare(input_ids, *args, **kwargs)

    def _pass(self, *args: Any, **kwargs: Any) -> Any:
        tokens, self._tokens = self._tokens, b""
        if self._computes or not tokens:  # one that is not generate()'s is none of ours
            output = self._forward(*args, **kwargs)
            if tokens:
                self._logits[tokens] = output.logits[:, -1:].clone()
            self._kind = type(output)
            return output
        if tokens not in self._logits:
            raise _NotRememberedError
        return self._kind(logits=self._logits[tokens].clone())
