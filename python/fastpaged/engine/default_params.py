"""The sampling parameters of requests that give none: those of the model's own generation_config.json."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastpaged.errors import InvalidRequestError, ModelFormatError, ModelNotFoundError
from fastpaged.sampling_params import SamplingParams
from fastpaged.tokenizer.json_file import read_json_object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastpaged.config import EngineConfig

_FILE = "generation_config.json"
OURS = ("fastpaged", "vllm")  # values of generation_config: no file is read
# Its keys that are fields of SamplingParams; the others say nothing about sampling, or nothing that is followed here.
_FIELDS = {
    "repetition_penalty": "repetition_penalty",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "max_new_tokens": "max_tokens",
}


def default_params(config: EngineConfig, model: str) -> SamplingParams:
    """model: the file or folder it lies in.

    Raises ModelFormatError for a value in the file that is out of range, ModelNotFoundError for a folder in
    config.generation_config without the file, InvalidRequestError for what override_generation_config may not hold.
    """
    given: dict[str, object] = {}
    if config.generation_config not in OURS:
        file = Path(model if config.generation_config == "auto" else config.generation_config) / _FILE
        if config.generation_config != "auto" and not file.is_file():
            raise ModelNotFoundError(
                f"generation_config must be 'auto', 'fastpaged', 'vllm' or a folder with {_FILE}, "
                f"got {config.generation_config!r}"
            )
        # Beside a .gguf file there is none: below a file there is nothing.
        content = read_json_object(file) if file.parent.is_dir() else {}
        given = {_FIELDS[key]: value for key, value in content.items() if key in _FIELDS and value is not None}
        try:
            _params(given, config)
        except InvalidRequestError as error:
            raise ModelFormatError(f"{file}: {error}; generation_config='fastpaged' leaves it out") from None
    for key, value in config.override_generation_config.items():
        field = _FIELDS.get(key, key)
        if field not in _FIELDS.values():
            known = list(_FIELDS)
            raise InvalidRequestError(f"a key of override_generation_config must be one of {known}, got {key!r}")
        if value is not None:
            given[field] = value
    try:
        return _params(given, config)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"override_generation_config: {error}") from None


def _params(given: Mapping[str, Any], config: EngineConfig) -> SamplingParams:
    return SamplingParams(**given, detokenize=not config.skip_tokenizer_init)
