"""How a prompt becomes tokens, and tokens text again: one way for local models and for servers.

Three traps are handled here and nowhere else. A prefill continues the reply: the template is rendered with
its generation prompt and the prefill is appended, so no end token comes between. A text and what follows it
are tokenised together, because "correct? " + "yes" is not the tokens of "correct? yes". And new tokens are
decoded after the tokens before them, because many tokenizers drop the space in front of a lone first word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import numpy as np

from stepmark.batching import Prompt
from stepmark.errors import InputError, MarkerInTextError, UsageError
from stepmark.models.tree import common_prefix

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Enough context to the left for any tokenizer to decode the first new token as it stands in the text.
_TAIL = 8


@final
class PromptEncoder:
    """Encodes prompts for one tokenizer.

    Args:
        tokenizer: of the model.
        name: the model's name, for messages.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
        self._tokenizer = tokenizer
        self._name = name
        added = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
        self._control = sorted({*tokenizer.all_special_tokens, *added}, key=len, reverse=True)

    @property
    def fingerprint(self) -> str:
        """What decides how a prompt becomes tokens: the chat template and the vocabulary."""
        return f"{self._tokenizer.chat_template!r} {sorted(self._tokenizer.get_vocab().items())!r}"

    def ids(self, prompt: Prompt, prefill: str = "") -> list[int]:
        """The tokens of prompt and prefill; what the model writes comes next.

        Raises:
            MarkerInTextError: a control token of this model stands in a message: it would be read as
                structure. (Raw text is taken as it stands: there, control tokens are meant.)
            UsageError: messages, and the model has no chat template or its template refuses them.
        """
        return self._encode(self._rendered(prompt) + prefill, raw=isinstance(prompt, str))

    def options(
        self, prompt: Prompt, prefill: str, options: Sequence[str]
    ) -> tuple[list[int], list[list[int]]]:
        """The tokens that all options share, and the rest of each.

        Each option is tokenised together with the text before it. Where that changes the last tokens of the
        text, they move from the shared part into every rest.

        Raises:
            InputError: nothing is shared: the text before the options is too short.
        """
        text, raw = self._rendered(prompt) + prefill, isinstance(prompt, str)
        before = self._encode(text, raw=raw)
        whole = [self._encode(text + option, raw=raw) for option in options]
        shared = min(common_prefix(np.asarray(before), np.asarray(ids)) for ids in whole)
        if shared == 0 or any(len(ids) <= shared for ids in whole):
            raise InputError(
                f"{self._name}: the tokens of {options!r} cannot be told from those of the text before them, "
                f"which ends {text[-20:]!r}"
            )
        return before[:shared], [ids[shared:] for ids in whole]

    def continuation(self, prompt: Prompt, prefill: str, text: str) -> tuple[list[int], list[int]]:
        """The tokens of prompt and prefill as `ids` gives them, and those of a text written after them.

        Where tokenising all of it together would change the tokens of the prompt (a prefill that ends in a space), the text is
        tokenised alone, as a model has to write it.
        """
        before = self.ids(prompt, prefill)
        raw = isinstance(prompt, str)
        whole = self._encode(self._rendered(prompt) + prefill + text, raw=raw)
        if whole[: len(before)] == before:
            return before, whole[len(before) :]
        # Behind a line break, because many tokenizers put a space before a lone first word.
        line = list(self._tokenizer("\n", add_special_tokens=False)["input_ids"])
        behind = list(self._tokenizer("\n" + text, add_special_tokens=False)["input_ids"])
        if behind[: len(line)] == line:
            return before, behind[len(line) :]
        return before, list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def text(self, before: Sequence[int], new: Sequence[int]) -> str:
        """The text of new tokens that follow others; control tokens give no text."""
        tail = list(before[-_TAIL:])
        return self._decode(tail + list(new))[len(self._decode(tail)) :]

    def _rendered(self, prompt: Prompt) -> str:
        if isinstance(prompt, str):
            return prompt
        for message in prompt:
            for token in self._control:
                if token in message.content:
                    raise MarkerInTextError(
                        f"the {message.role} message holds {token!r}, a control token of {self._name}; "
                        f"remove or rewrite it"
                    )
        if not self._tokenizer.chat_template:
            raise UsageError(f"{self._name} has no chat template: give the prompt as raw text")
        import jinja2

        turns = [{"role": message.role, "content": message.content} for message in prompt]
        try:
            return str(self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
        except jinja2.TemplateError as error:
            raise UsageError(
                f"the chat template of {self._name} refuses this conversation: {error}"
            ) from None

    def _encode(self, text: str, *, raw: bool) -> list[int]:
        # A rendered template already holds the beginning-of-text token.
        ids = list(self._tokenizer(text, add_special_tokens=raw)["input_ids"])
        end = self._tokenizer.eos_token_id
        if raw and ids and ids[-1] == end and not text.endswith(str(self._tokenizer.eos_token)):
            ids.pop()  # some tokenizers close every text; ours goes on
        return ids

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
