"""The options of every command that samples, each a field of the same name of SamplingParams: absent, the model's
default holds, or else the field's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

SAMPLING_FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "min_tokens", "ignore_eos", "logprobs",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "stop",
)  # fmt: skip


def add_sampling_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """All but max_tokens, of which each command has its own default. Returns the group, for more of them."""
    group = parser.add_argument_group("sampling")
    group.add_argument("--min-tokens", type=int, metavar="N", help="no end before N tokens (default: 0)")
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="end the answer where this text would come; may be repeated"
    )
    group.add_argument(
        "--temperature", type=float, metavar="X", help="0 takes the most likely token (default: the model's, or 1)"
    )
    group.add_argument("--top-p", type=float, metavar="X", help="keep the likeliest tokens up to this probability")
    group.add_argument("--top-k", type=int, metavar="K", help="keep the K likeliest tokens")
    group.add_argument("--min-p", type=float, metavar="X", help="keep tokens this likely relative to the best")
    group.add_argument("--seed", type=int, metavar="S", help="repeat an answer (default: drawn)")
    group.add_argument(
        "--presence-penalty", type=float, metavar="X", help="from each token of the answer (-2 to 2; default: 0)"
    )
    group.add_argument(
        "--frequency-penalty", type=float, metavar="X", help="the same for each time it came (-2 to 2; default: 0)"
    )
    group.add_argument(
        "--repetition-penalty",
        type=float,
        metavar="X",
        help="divides the logits of tokens of prompt and answer (> 0; default: 1)",
    )
    group.add_argument("--ignore-eos", action="store_true", help="go on after an end-of-sequence token")
    return group


def sampling_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Those that were given."""
    given = vars(args)
    return {name: given[name] for name in SAMPLING_FIELDS if name in given}
