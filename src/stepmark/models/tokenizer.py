"""A tokenizer.json read by `tokenizers` alone: what an `Encoder` asks of a tokenizer, without transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from tokenizers import AddedToken, Tokenizer

from stepmark.models.files import check_file, present, read_object

_ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")
_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes of transformers that read tokenizer.json as it is; others build the tokenizer anew."""
_FREE = {
    *("backend", "clean_up_tokenization_spaces", "extra_special_tokens", "is_local", "local_files_only"),
    *("model_max_length", "tokenizer_class"),
}
"""Settings that are read here, or change no token."""


def read_tokenizer(folder: Path) -> TextTokenizer | None:
    """The tokenizer of a checkpoint; None where its config states what only transformers reads.

    Raises:
        CheckpointError: a file of it cannot be read.
    """
    file, about = folder / "tokenizer.json", folder / "tokenizer_config.json"
    if not (present(file) and present(about)) or present(folder / "special_tokens_map.json"):
        return None
    config = read_object(about)
    roles = {role: config.get(role) for role in _ROLES}
    special = config.get("extra_special_tokens", [])
    if config.get("tokenizer_class") not in _CLASSES or config.keys() - _FREE - roles.keys():
        return None
    check_file(file)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception:  # `tokenizers` raises no kind of its own; transformers then says what is wrong
        return None
    named = [token for token in roles.values() if token is not None]
    if not isinstance(special, list) or not all(
        isinstance(token, str) and tokenizer.token_to_id(token) is not None for token in (*named, *special)
    ):
        return None
    return TextTokenizer(tokenizer, roles, special)


@final
class TextTokenizer:
    """A tokenizer with the methods and attributes of transformers' that an `Encoder` uses.

    Args:
        tokenizer: has all tokens that are named.
        roles: "bos_token", "eos_token", "pad_token", "unk_token": the token, or None.
        special: other control tokens.
    """

    is_fast = True
    chat_template = None
    """Layouts with a chat template are read by transformers' tokenizer."""

    def __init__(self, tokenizer: Tokenizer, roles: dict[str, str | None], special: Sequence[str]) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.bos_token, self.unk_token = roles["bos_token"], roles["unk_token"]
        self._special = list(dict.fromkeys([*filter(None, roles.values()), *special]))

    def __call__(
        self, text: str, *, add_special_tokens: bool = True, return_offsets_mapping: bool = False
    ) -> dict[str, list[Any]]:
        """Token ids as `input_ids`, and spans of characters as `offset_mapping`."""
        encoding = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        spans = {"offset_mapping": encoding.offsets} if return_offsets_mapping else {}
        return {"input_ids": encoding.ids, **spans}

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids."""
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> str | list[str | None] | None:
        """The token of an id, or of each."""
        if isinstance(ids, int):
            return self._tokenizer.id_to_token(ids)
        return [self._tokenizer.id_to_token(token) for token in ids]

    def get_vocab(self) -> dict[str, int]:
        """All tokens with their ids."""
        return self._tokenizer.get_vocab(with_added_tokens=True)

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        """The tokens that were added to the vocabulary, by id."""
        return self._tokenizer.get_added_tokens_decoder()

    @property
    def all_special_ids(self) -> list[int]:
        """Ids of the control tokens that have a role or were named."""
        ids = map(self._tokenizer.token_to_id, self._special)
        return [token for token in ids if token is not None]

    @property
    def bos_token_id(self) -> int | None:
        """The id of `bos_token`."""
        return None if self.bos_token is None else self._tokenizer.token_to_id(self.bos_token)

    @property
    def unk_token_id(self) -> int | None:
        """The id of `unk_token`."""
        return None if self.unk_token is None else self._tokenizer.token_to_id(self.unk_token)
