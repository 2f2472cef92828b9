"""The Hugging Face hub: fetches of a repository what fastpaged reads, and nothing else."""

from __future__ import annotations

import glob
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fastpaged.errors import ModelFormatError, ModelNotFoundError
from fastpaged.formats.safetensors_index import INDEX_NAME, read_weight_map
from fastpaged.weights.checkpoint import read_config

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_CONFIG_NAME = "config.json"
_SAFETENSORS_NAMES = ("model.safetensors", INDEX_NAME)
# What may lie beside safetensors files, and is read. Code and pickles are not.
_SMALL_NAMES = (
    _CONFIG_NAME,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
# What a tokenizer is built from where there is no tokenizer.json.
_OLDER_TOKENIZER_NAMES = ("vocab.json", "merges.txt", "tokenizer.model", "added_tokens.json")
_NO_FILE = "/"  # a pattern that no file's name matches
_TIMEOUT_S = 10.0
_MAX_NAMES_SHOWN = 12
_MAX_TEXT = 200


@dataclass(frozen=True)
class Hub:
    """endpoint: a URL. cache_dir: where repositories are kept. token: who asks; False: nobody. None: as huggingface_hub
    does (HF_ENDPOINT, HF_HOME, HF_TOKEN or `hf auth login`)."""

    endpoint: str | None = None
    cache_dir: str | None = None
    token: str | bool | None = field(default=None, repr=False)

    def fetch(
        self,
        repository: str,
        gguf: str | None = None,
        *,
        revision: str | None = None,
        overrides: Mapping[str, object] | None = None,
    ) -> Path:
        """The newest commit of "org/name" on this machine: a folder with safetensors files, or a .gguf file.

        gguf: which .gguf file of the repository; None: its safetensors files, or else the only .gguf file it has.
        revision: a branch, tag or commit; None: the main branch. Where the hub does not answer, what was fetched before
        is taken, and the log says so. overrides: as for read_config().

        Raises ModelNotFoundError for a `gguf` that is not there, ModelFormatError for a repository without a model that
        fastpaged reads (where config.json shows it, before any weights are fetched), and any error of huggingface_hub.
        """
        from huggingface_hub import HfApi  # a third of a second, which nobody who gives a path should wait for

        try:
            info = HfApi(endpoint=self.endpoint, token=self.token).model_info(
                repository, revision=revision, timeout=_TIMEOUT_S
            )
        except Exception as error:  # of the HTTP library of whichever version, too
            return self._fetched_before(repository, gguf, revision, error)
        names = [sibling.rfilename for sibling in info.siblings or ()]
        weights = choose_weights(repository, names, gguf)
        if weights not in _SAFETENSORS_NAMES:
            return self._download(repository, [weights], revision=revision) / weights
        wanted = _SMALL_NAMES if "tokenizer.json" in names else _SMALL_NAMES + _OLDER_TOKENIZER_NAMES
        small = [name for name in wanted if name in names] + [name for name in (weights,) if name == INDEX_NAME]
        folder = self._download(repository, small, revision=revision)
        read_config(folder, overrides)
        commit = folder.name  # the weights must be of the same one, whatever is pushed meanwhile
        return self._download(repository, _weight_files(folder, weights), revision=commit)

    def fetch_small(self, repository: str, *, revision: str | None = None) -> Path:
        """The folder of the newest commit, with what may lie beside the weights and is read: configs and tokenizer.

        Where the hub does not answer, huggingface_hub takes what was fetched before. Raises any error of its own.
        """
        folder = self._download(repository, _SMALL_NAMES, revision=revision)
        if (folder / "tokenizer.json").exists():
            return folder
        return self._download(repository, _OLDER_TOKENIZER_NAMES, revision=folder.name)

    def _fetched_before(self, repository: str, gguf: str | None, revision: str | None, error: Exception) -> Path:
        """Raises `error`, why nothing newer can be had, where no whole model is there."""
        try:
            folder = self._download(repository, [_NO_FILE], revision=revision, local_files_only=True)
            names = os.listdir(folder)
            weights = choose_weights(repository, names, gguf)
            whole = set(_weight_files(folder, weights)) <= set(names)
        except Exception:  # huggingface_hub's where nothing is there, ours where it is something else
            raise error from None
        if not whole:
            raise error
        logging.getLogger(__name__).warning(
            "%s: taking what was fetched before, for the hub could not be asked: %s", repository, summary(error)
        )
        return folder if weights in _SAFETENSORS_NAMES else folder / weights

    def _download(
        self,
        repository: str,
        names: Collection[str],
        *,
        revision: str | None = None,
        local_files_only: bool = False,
    ) -> Path:
        """The folder of the revision, with these files in it and perhaps more. A commit is not what a later call for
        the branch it is on gets when the hub does not answer."""
        from huggingface_hub import snapshot_download

        return Path(
            snapshot_download(
                repository,
                revision=revision,
                endpoint=self.endpoint,
                cache_dir=self.cache_dir,
                token=self.token,
                allow_patterns=[glob.escape(name) for name in names],
                local_files_only=local_files_only,
            )
        )


def _weight_files(folder: Path, weights: str) -> list[str]:
    """`weights`, or what it lists: the index lies in `folder` already, the files need not."""
    return sorted(set(read_weight_map(folder / weights).values())) if weights == INDEX_NAME else [weights]


def choose_weights(repository: str, names: Collection[str], gguf: str | None) -> str:
    """Which of a repository's files hold the weights: a .gguf file, model.safetensors, or its index. `gguf` and errors
    as in Hub.fetch()."""
    ggufs = sorted(name for name in names if name.endswith(".gguf") and "/" not in name)
    if gguf is not None:
        if gguf not in ggufs:
            raise ModelNotFoundError(f"model: {repository} on the hub has no {gguf!r}; {_held(ggufs, '.gguf files')}")
        return gguf
    if _CONFIG_NAME in names:
        for name in _SAFETENSORS_NAMES:
            if name in names:
                return name
    if not ggufs:
        raise ModelFormatError(
            f"model: {repository} on the hub must hold {_CONFIG_NAME} with {' or '.join(_SAFETENSORS_NAMES)}, or a "
            f".gguf file (pickled weights are never read); {_held(names, 'files')}"
        )
    if len(ggufs) > 1:
        raise ModelFormatError(
            f"model: {repository} on the hub holds several .gguf files; name one, as in {repository}/{ggufs[0]}; "
            f"{_held(ggufs, '.gguf files')}"
        )
    return ggufs[0]


def _held(names: Collection[str], what: str) -> str:
    """The last part of an error: the names there are."""
    shown = sorted(names)[:_MAX_NAMES_SHOWN]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return f"its {what}: {', '.join(shown) or 'none'}{more}"


def summary(error: Exception) -> str:
    """An error of a library in one short line."""
    text = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}: {text[:_MAX_TEXT]}{'...' if len(text) > _MAX_TEXT else ''}"
