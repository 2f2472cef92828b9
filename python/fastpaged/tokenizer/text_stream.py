"""Token ids to text, one token at a time, with bounded work per token.

The law: what a stream emits, finish() included, is what text(prompt + output) has after its longest common prefix with
text(prompt). Where text(prompt) is a prefix of text(prompt + output), that is their difference. Where it is not, the
prompt ended within a character which the output completed: then the completed character is emitted, and not U+FFFD.
"""

from __future__ import annotations

import codecs
import copy
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_DECODER = codecs.getincrementaldecoder("utf-8")
_LONGEST_INCOMPLETE_CHARACTER = 3  # bytes of UTF-8


class TextStream(Protocol):
    """The text of an answer as it grows."""

    def push(self, token_id: int) -> str:
        """The text that became certain with this token: whole characters, maybe none."""

    def finish(self) -> str:
        """Ends the answer: what was held back, an incomplete character as U+FFFD. Once; push() is over then."""

    def copy(self) -> TextStream:
        """The same answer, to go on in another way."""


class ByteLevelTextStream:
    """For byte-level vocabularies, where the text is the UTF-8 decoding of the tokens' bytes in a row."""

    def __init__(self, prompt_token_ids: Sequence[int], bytes_of: Callable[[int], bytes]) -> None:
        """`bytes_of` gives the bytes of a token, none for one that is not shown."""
        self._bytes_of = bytes_of
        self._decoder = _DECODER("replace")
        self._decoder.decode(self._tail(prompt_token_ids))
        # What text(prompt) ends in, in place of the bytes that wait for more. Two characters for half a surrogate,
        # ED A0: no UTF-8 whatever follows, but Python's decoder waits for the third byte.
        self._shown_by_prompt = self._decoder.getstate()[0].decode("utf-8", "replace")

    def push(self, token_id: int) -> str:
        """See TextStream."""
        return self._emit(self._decoder.decode(self._bytes_of(token_id)))

    def finish(self) -> str:
        """See TextStream."""
        return self._emit(self._decoder.decode(b"", final=True))

    def copy(self) -> ByteLevelTextStream:
        """See TextStream."""
        other = copy.copy(self)
        other._decoder = _DECODER("replace")
        other._decoder.setstate(self._decoder.getstate())
        return other

    def _tail(self, prompt_token_ids: Sequence[int]) -> bytes:
        tail = b""
        for token_id in reversed(prompt_token_ids):
            if len(tail) >= _LONGEST_INCOMPLETE_CHARACTER:
                break
            tail = self._bytes_of(token_id) + tail
        return tail

    def _emit(self, text: str) -> str:
        if not text:
            return ""
        shown, self._shown_by_prompt = self._shown_by_prompt, ""
        return text.removeprefix(shown)


class WindowTextStream:
    """For every other decoder: decodes a short window of tokens with and without the new ones, and compares.

    Relies on what holds for the decoders that Tokenizer admits: only the first visible text of a sequence is treated in
    a way of its own (a leading space is dropped), and only runs of byte tokens (<0x41>) are decoded as a whole, so that
    a later byte may change how the run reads. A run is therefore held back until it ends.
    """

    def __init__(
        self,
        prompt_token_ids: Sequence[int],
        decode: Callable[[list[int]], str],
        is_visible: Callable[[int], bool],
        is_byte: Callable[[int], bool],
    ) -> None:
        self._decode = decode
        self._is_visible = is_visible
        self._is_byte = is_byte
        self._held: list[int] = []
        self._set_anchor(prompt_token_ids)

    def push(self, token_id: int) -> str:
        """See TextStream."""
        if not self._is_visible(token_id):
            return ""
        self._held.append(token_id)
        return "" if self._is_byte(token_id) else self._release()

    def finish(self) -> str:
        """See TextStream."""
        return self._release() if self._held else ""

    def copy(self) -> WindowTextStream:
        """See TextStream."""
        other = copy.copy(self)
        other._held = self._held[:]
        return other

    def _release(self) -> str:
        window = self._anchor + self._held
        text = self._decode(window)
        start = _common_prefix_length(self._anchor_text, text)
        self._held = []
        self._set_anchor(window)
        return text[start:]

    def _set_anchor(self, token_ids: Sequence[int]) -> None:
        """Keeps the shortest tail that begins with no byte token and has a text, so that a new token is never first."""
        newest_first: list[int] = []
        text = ""
        for token_id in reversed(token_ids):
            if not self._is_visible(token_id):
                continue
            newest_first.append(token_id)
            if not self._is_byte(token_id):
                text = self._decode(newest_first[::-1])
                if text:
                    break
        self._anchor = newest_first[::-1]
        self._anchor_text = text or self._decode(self._anchor)


def _common_prefix_length(left: str, right: str) -> int:
    if right.startswith(left):
        return len(left)
    return next(at for at, (a, b) in enumerate(zip(left, right + "\0", strict=False)) if a != b)
