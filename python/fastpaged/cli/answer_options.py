"""The options that say how many answers there are, and whether they are drawn or searched for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastpaged.errors import InvalidRequestError

if TYPE_CHECKING:
    import argparse

_EARLY_STOPPING = {"yes": True, "no": False, "never": "never"}
# A beam search draws nothing: what a model's own defaults say of drawing is left out.
_UNDRAWN = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}


def add_answer_options(parser: argparse.ArgumentParser) -> None:
    """A group of them."""
    group = parser.add_argument_group("several answers")
    group.add_argument("--n", type=int, metavar="N", help="show N answers (default: 1, or all beams)")
    group.add_argument("--best-of", type=int, metavar="N", help="draw N answers and keep the likeliest")
    group.add_argument("--beam-width", type=int, metavar="N", help="search for the likeliest answers with N beams")
    group.add_argument(
        "--length-penalty", type=float, metavar="X", help="of beams: more favours longer answers (default: 1)"
    )
    group.add_argument(
        "--early-stopping",
        choices=list(_EARLY_STOPPING),
        help="of beams: end as soon as there are N answers, or once no better ones are likely (no, the default) or "
        "possible (never)",
    )


def answer_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Those that were given, as fields of SamplingParams."""
    given = vars(args)
    fields: dict[str, Any] = {name: given[name] for name in ("n", "best_of", "length_penalty") if name in given}
    if "early_stopping" in given:
        fields["early_stopping"] = _EARLY_STOPPING[given["early_stopping"]]
    if "beam_width" in given:
        width = given["beam_width"]
        if "best_of" in given:
            raise InvalidRequestError("--best-of must not be given with --beam-width, which is how many are searched")
        undrawn = {name: off for name, off in _UNDRAWN.items() if name not in given}
        fields = {"n": width, "best_of": width, "use_beam_search": True} | undrawn | fields
    return fields
