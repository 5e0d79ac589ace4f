"""Keys of clients: a file of names and keys, of which only digests are kept."""

from __future__ import annotations

import hashlib
from hmac import compare_digest
from pathlib import Path
from typing import final

from stepmark.errors import InputError, UsageError

SHORTEST = 16
"""Characters of a key: with fewer it could be guessed."""


@final
class Keys:
    """Who may ask.

    Args:
        keys: name: key.

    Raises:
        UsageError: no keys at all, or one that is too short, has white space or no ASCII, or is another one's too.
    """

    def __init__(self, keys: dict[str, str]) -> None:
        if not keys:
            raise UsageError("expected at least one key, found none")
        self._digests: dict[bytes, str] = {}
        for name, key in keys.items():
            if len(key) < SHORTEST or not key.isascii() or not key.isprintable() or " " in key:
                raise UsageError(
                    f"the key of {name!r}: expected {SHORTEST} or more visible ASCII characters; make one with "
                    "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
                )
            other = self._digests.setdefault(_digest(key.encode()), name)
            if other != name:
                raise UsageError(f"{other!r} and {name!r} have the same key: give each its own")

    def __len__(self) -> int:
        return len(self._digests)

    @classmethod
    def read(cls, path: str | Path) -> Keys:
        """Keys of a file: a line each, NAME KEY; blank lines and those that begin with # are passed over.

        Raises:
            InputError: no such file, or a line that is no name and key; the key itself is never shown.
            UsageError: see the class.
        """
        try:
            text = Path(path).read_text(encoding="utf-8-sig")  # some editors begin files with a mark
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise InputError(f"the file of keys cannot be read: {why}", where=str(path)) from None
        keys: dict[str, str] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            where = f"{path}:{number}"
            if len(words) != 2:
                raise InputError(
                    f"expected NAME KEY, found {len(words)} word{'s' * (len(words) > 1)}", where=where
                )
            if words[0] in keys:
                raise InputError(f"the name {words[0]!r} has a key already", where=where)
            keys[words[0]] = words[1]
        try:
            return cls(keys)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None

    def name_of(self, header: bytes | None) -> str | None:
        """Whose key an Authorization header has; None for none that is known. Takes as long for a wrong key as for a right one."""
        scheme, _, key = (header or b"").partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        asked, found = _digest(key.strip()), None
        for digest, name in self._digests.items():
            if compare_digest(digest, asked):
                found = name
        return found


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
