"""The options that say how many answers there are, and whether they are drawn or searched for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastpaged import param_checks as check
from fastpaged.errors import InvalidRequestError
from fastpaged.sampling_params import MAX_N

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

_EARLY_STOPPING = {"yes": True, "no": False, "never": "never"}
_OF_BEAMS = ("length_penalty", "early_stopping")
_OF_DRAWING = ("best_of", "top_p", "top_k", "min_p")
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
    """Those that were given, as fields of SamplingParams.

    InvalidRequestError for what the fields cannot say of the options: they have other names, or are of two options.
    """
    given = vars(args)
    _check(given)
    fields: dict[str, Any] = {name: given[name] for name in ("n", "best_of", "length_penalty") if name in given}
    if "early_stopping" in given:
        fields["early_stopping"] = _EARLY_STOPPING[given["early_stopping"]]
    if "beam_width" in given:
        width = given["beam_width"]
        undrawn = {name: off for name, off in _UNDRAWN.items() if name not in given}
        fields = {"n": width, "best_of": width, "use_beam_search": True} | undrawn | fields
    return fields


def _check(given: Mapping[str, Any]) -> None:
    with_beams = "beam_width" in given
    for name in _OF_DRAWING if with_beams else _OF_BEAMS:
        if name in given:
            why = "with --beam-width: a search draws nothing" if with_beams else "without --beam-width"
            raise InvalidRequestError(f"--{name.replace('_', '-')} must not be given {why}")
    if "n" in given:
        check.integer("--n", given["n"], 1, MAX_N, f"an integer from 1 to {MAX_N}")
    for name, option in (("best_of", "--best-of"), ("beam_width", "--beam-width")):
        if name in given:
            least, called = given.get("n", 1), "--n = " if "n" in given else ""
            check.integer(option, given[name], least, MAX_N, f"an integer from {called}{least} to {MAX_N}")
