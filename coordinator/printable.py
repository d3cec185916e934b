"""Make text safe to print: characters that could rewrite a terminal or forge a log line become escapes.

Such characters are control characters (including the C1 range, such as U+009B), and characters that change the direction of text
(such as U+202E). Texts that users, handlers and foreign servers control are printed through this module only.
"""

from __future__ import annotations

import json


def clean(text: str, keep: str = "\n\t") -> str:
    r"""Return the text with \x.., \u.... or \U........ for each character that is not printable, except those in `keep`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _escape(c) for c in text)


def json_text(value: object, indent: int | None = None) -> str:
    r"""Return a value as JSON in which characters that are not printable are written as \u...."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=str)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
