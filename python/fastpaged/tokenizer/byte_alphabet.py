"""The alphabet of byte-level BPE: a printable character for each of the 256 bytes."""

from __future__ import annotations


def _characters_of_bytes() -> list[str]:
    # Bytes that print as themselves in Latin-1 stand for themselves, the others for the next character from U+0100.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    stand_ins = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(stand_ins)) for byte in range(256)]


CHARACTER_OF_BYTE = _characters_of_bytes()
BYTE_OF_CHARACTER = {character: byte for byte, character in enumerate(CHARACTER_OF_BYTE)}


def token_bytes(token: str) -> bytes:
    """The bytes that a token of a byte-level vocabulary stands for.

    A token with any character outside the alphabet is an added token written as plain text.
    """
    try:
        return bytes([BYTE_OF_CHARACTER[character] for character in token])
    except KeyError:
        return token.encode("utf-8")
