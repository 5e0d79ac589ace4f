"""OpenAI's chat completion as plain data."""

from __future__ import annotations

import time
import uuid
from typing import Any, Literal


def completion(
    *,
    model: str,
    text: str,
    finish: Literal["stop", "length"],
    tokens: tuple[int | None, int | None],
    stepmark: dict[str, Any],
) -> dict[str, Any]:
    """A `chat_wire.ChatAnswer`.

    Args:
        model: the model's name.
        text: the answer.
        finish: why it ended.
        tokens: of prompts that were read, and written; `usage` is left out where one is not known.
        stepmark: a `chat_wire.Chosen`.
    """
    usage: dict[str, Any] = {}
    prompt, written = tokens
    if prompt is not None and written is not None:
        usage["usage"] = {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
        }
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex[:24]}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": None,
                "finish_reason": finish,
            }
        ],
        **usage,
        "stepmark": stepmark,
    }
