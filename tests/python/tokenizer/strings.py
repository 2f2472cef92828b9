"""Strings that tokenizers disagree on, from a seed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<file_sep>", "<empty_output>")

_CODE = (
    "def f(x):\n    return x**2  # squared\n",
    "for (int i = 0; i < 10; ++i) {\n\ta[i] += 0x1F;\n}\n",
    "SELECT * FROM t WHERE id >= 42 AND name LIKE '%x%';",
    '<div class="a">&nbsp;it\'s</div>\r\n',
    '{"k": [1, 2.5e-3, null, true]}',
    "fn main() -> Result<(), Box<dyn Error>> { Ok(()) }",
    "x != y && !(z || w) ?. a ?? b;",
    "\\frac{\\partial L}{\\partial w} = \\sum_{i=1}^{n} x_i^2",
    "    if True:\n        pass\n\n\n    else:\n\t\t...",
    "1234567890 + 3.14159 == 1_000_000",
)
_WORDS = (
    "Hello, world!",
    " the quick brown fox",
    "I'll we've don't she'd they're it's I'm 'tis",
    "I'LL WE'VE DON'T",
    "naïve café façade Ångström",
    "Straße größer",
    "Привет, как дела?",
    "Γειά σου Κόσμε",
    "שלום עולם",
    "مرحبا بالعالم ١٢٣",
    "नमस्ते दुनिया १२३",
    "สวัสดีชาวโลก",
    "你好,世界。今天是2024年",
    "こんにちは世界 カタカナ",
    "안녕하세요 세계",
    "Xin chào thế giới",
    "გამარჯობა",
    "አማርኛ",
    "ᏣᎳᎩ",
    "𝕳𝖊𝖑𝖑𝖔 𝟙𝟚𝟛",
    "e\u0301 cafe\u0301 A\u030a",
    "ﬁ ﬂ Ⅳ ① ½ ² ³ ٣ ४ 一 〇",
    "İstanbul ıI",
    "ﷺ ﷽",
    "Ĝ Ġ Ċ ĉ Ā",
)
_EMOJI = (
    "😀",
    "👍🏽",
    "👨‍👩‍👧‍👦",
    "🏳️‍🌈",
    "🇫🇷🇩🇪",
    "❤️",
    "🤷🏻‍♀️",
    "1️⃣",
    "🫠",
    "☃",
)
_SPACES = (
    " ",
    "  ",
    "   ",
    "    ",
    "\t",
    "\t\t",
    "\n",
    "\n\n",
    "\r\n",
    " \n ",
    "\u00a0",
    "\u3000",
    "\u2003",
    "\u200b",
    "\ufeff",
)
_DIGITS = ("0", "7", "42", "007", "2024", " 3", "  3", "x 1", "1.5", "٣", "½", "²", "५", "Ⅷ", "𝟜", "10⁶", "1,000")
_PUNCTUATION = (
    "...",
    "?!",
    "--",
    "—",
    "“”",
    "''",
    "'",
    '"',
    "_",
    "###",
    "===",
    "$€£",
    "«»",
    "¿¡",
    "·",
    "…",
    "^^",
    "~",
    "`",
)
_POOLS: tuple[Sequence[str], ...] = (_CODE, _WORDS, _EMOJI, _SPACES, _DIGITS, _PUNCTUATION, SPECIAL_TOKENS)
_BLOCKS = (
    (0x00, 0x20),  # control characters
    (0x20, 0x7F),
    (0x7F, 0x100),
    (0x100, 0x250),
    (0x370, 0x530),
    (0x590, 0x700),
    (0x900, 0xE00),
    (0x1E00, 0x2070),
    (0x2070, 0x2C00),
    (0x3040, 0xA000),
    (0xE000, 0xE100),  # private use
    (0xFB00, 0xFFFF),
    (0x1F000, 0x1FB00),
    (0x10000, 0x110000),
)


def strings(seed: int, count: int) -> list[str]:
    """At least every sample by itself; then random mixtures. The same for the same arguments."""
    samples = ["", *(sample for pool in _POOLS for sample in pool)]
    random_strings = random.Random(seed)
    mixtures = [_mixture(random_strings) for _ in range(max(0, count - len(samples)))]
    return samples + mixtures


def _mixture(source: random.Random) -> str:
    pieces = []
    for _ in range(source.randint(1, 8)):
        if source.random() < 0.25:
            pieces.append(_random_characters(source))
        else:
            pieces.append(source.choice(source.choice(_POOLS)))
        if source.random() < 0.3:
            pieces.append(source.choice(_SPACES) * source.randint(1, 5))
    return "".join(pieces)


def _random_characters(source: random.Random) -> str:
    begin, end = source.choice(_BLOCKS)
    points = (source.randrange(begin, end) for _ in range(source.randint(1, 12)))
    return "".join(chr(point) for point in points if not 0xD800 <= point < 0xE000)  # surrogates are no text
