"""Where a model lies on this machine: at a path, in FASTPAGED_MODELS, or fetched from the hub by its name."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from fastpaged.errors import FastpagedError, InvalidRequestError, ModelNotFoundError
from fastpaged.formats.file_kind import FOLDER, file_kind
from fastpaged.weights.hub import Hub, summary

if TYPE_CHECKING:
    from collections.abc import Mapping

MODELS_VARIABLE = "FASTPAGED_MODELS"
_NAME_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}")  # leads out of no folder
_MAX_NAME_PARTS = 3


def local_model(
    name: str,
    hub: Hub | None = None,
    *,
    revision: str | None = None,
    without_weights: bool = False,
    overrides: Mapping[str, object] | None = None,
) -> Path:
    """The file or folder of the model called `name`.

    name: a path, which wins where something is at it; or "org/name" or "org/name/FILE.gguf", looked up in the folder
        FASTPAGED_MODELS, then fetched from the hub (Hub.fetch(); None: as huggingface_hub is set up). Any other name is
        returned as the path it must then be, and whoever opens it says that nothing is there.
    revision: a branch, tag or commit of a name on the hub, and on the hub alone: for a path it is an
        InvalidRequestError, and FASTPAGED_MODELS, of which nobody knows the revision, is left out.
    without_weights: of "org/name" fetch only configs and tokenizer.
    overrides: what will be laid over config.json, which is looked at before weights are fetched.

    Raises ModelNotFoundError for a name that is nowhere, with the reason and what to do; else as Hub.fetch().
    """
    if file_kind(name) is not None:
        if revision is not None:
            raise InvalidRequestError(f"revision must be None for a path, which {name!r} is, got {revision!r}")
        return Path(name)
    parts = name.split("/")
    if len(parts) > _MAX_NAME_PARTS or not all(_NAME_PART.fullmatch(part) for part in parts):
        return Path(name)
    models = os.environ.get(MODELS_VARIABLE) if revision is None else None
    if models:
        place = _models_folder(models) / name
        if file_kind(place) is not None:
            return place
    is_file = name.endswith(".gguf")
    if len(parts) != (3 if is_file else 2):
        return Path(name)
    hub = hub or Hub()
    try:
        if without_weights and not is_file:
            return hub.fetch_small(name, revision=revision)
        return hub.fetch("/".join(parts[:2]), parts[2] if is_file else None, revision=revision, overrides=overrides)
    except FastpagedError:
        raise
    except Exception as error:  # there are many kinds, of huggingface_hub and of what it stands on
        raise ModelNotFoundError(_nowhere(name, models, error)) from error


def _models_folder(models: str) -> Path:
    kind = file_kind(models)
    if kind != FOLDER:
        raise ModelNotFoundError(f"{MODELS_VARIABLE} must be a folder, got {models!r}, where {kind or 'nothing'} is")
    return Path(models)


def _nowhere(name: str, models: str | None, error: Exception) -> str:
    looked = f"nothing is at {name!r}, nor in {MODELS_VARIABLE} ({models})" if models else f"nothing is at {name!r}"
    return (
        f"model: {looked}, and fetching it from the hub failed ({summary(error)}). Give the path of a .gguf file or "
        f"a model folder; or put the model into a folder as {name} and set {MODELS_VARIABLE} to that folder; or, if "
        "the model is gated or private, accept its terms on the hub and log in (`hf auth login`, or HF_TOKEN)"
    )
