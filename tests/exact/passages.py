"""English text with code in it that every Python carries: the topics of its own help system."""

from __future__ import annotations

from pydoc_data.topics import topics

TOPICS = (
    "attribute-access",
    "class",
    "execmodel",
    "for",
    "formatstrings",
    "import",
    "objects",
    "specialnames",
    "try",
    "types",
)


def passages() -> list[str]:
    """Ten passages of reference prose, 1,500 characters or more each."""
    return [topics[name].strip()[:2400] for name in TOPICS]
