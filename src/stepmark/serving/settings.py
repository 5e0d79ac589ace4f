"""Settings of a server: its limits and defaults, and which search answers as a chat model."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field

from stepmark.errors import UsageError
from stepmark.metrics.aggregate import check_aggregate
from stepmark.searches.base import Search
from stepmark.searches.methods import load_search
from stepmark.settings import settings
from stepmark.verifiers.base import isolation_of
from stepmark.verifiers.checks import check_names
from stepmark.verifiers.code_sandbox import Isolation

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@settings
class ServerSettings:
    """How a server serves: what holds where a request does not say, and limits."""

    name: str | None = None
    """The model's name for clients. Default: the PRM's own; of a folder, its last part."""
    aggregate: str | None = None
    """How step scores become one number where a request does not say: product, min, mean, last, max, sum-logit or softmin. Default: the PRM's own."""
    threshold: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """A step whose score is under this is an error, where a request does not say. Default: the PRM's own."""
    checks: str = "auto"
    """Exact checks beside the PRM where a request does not say: all, none, names with commas between them, or auto, which is all with the
    default PRM and none with any other."""
    token_budget: Count | None = None
    """Tokens that a batch computes. Default: the PRM's own: 2,048 on CPU, by free memory on CUDA; 4,096 where the PRM computes elsewhere."""
    memory_tokens: Count | None = None
    """Tokens whose keys and values the prefix cache holds, over all clients. Default: 65,536."""
    queue_tokens: Count | None = None
    """Tokens that may wait; more are refused with 429. Default: 32 batches."""
    timeout: Seconds = 60.0
    """Seconds a request may take where it does not say (504 afterwards)."""
    grace: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 30.0
    """Seconds that SIGTERM or Ctrl-C gives to requests in progress."""
    max_body_mb: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 8
    """Megabytes (2^20 bytes) of a request."""
    queue_mb: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 256
    """Megabytes of all requests that are being received or answered; what goes beyond is refused with 429."""
    max_solutions: Count = 1024
    """Solutions, candidates or sequences of a request."""

    def __post_init__(self) -> None:
        if self.aggregate is not None:
            check_aggregate(self.aggregate, "probability")
        if self.checks != "auto":
            check_names(self.checks)
        if self.queue_mb < self.max_body_mb:
            raise UsageError(
                f"`queue_mb` {self.queue_mb:g}: expected at least the size of one request, `max_body_mb`, which is {self.max_body_mb:g}"
            )

    @property
    def max_body(self) -> int:
        """Bytes of a request."""
        return int(self.max_body_mb * (1 << 20))


DEFAULTS = ServerSettings()
"""What holds where nothing else is given."""


def search_of(spec: str) -> Search:
    """The search of a name with settings, such as "beam:width=4,expand=2" or "best-of-n".

    Raises:
        UsageError: no such search, or a setting that it does not have or take.
    """
    found = re.fullmatch(r"([^=]*?)(?::(\w[\w.]*=.*))?", spec, re.DOTALL)
    if found is None:
        raise UsageError(
            f"`search` {spec}: expected a search and its settings, such as beam:width=4,expand=2"
        )
    return load_search(found[1], [] if found[2] is None else found[2].split(","))[0]


@settings
class ChatModel:
    """A search as a chat model, at /v1/chat/completions.

    Raises:
        UsageError: settings that cannot work together.
    """

    search: str = "best-of-n:n=8"
    """With a policy, the search that answers, with its settings: best-of-n:n=8, beam:width=4,expand=2, majority, weighted-vote, rebase, mcts and so on,
    or package.module:Class. It is the chat model's name, too; a client may name another one."""
    verifier: str = "math"
    """With a policy, what says which answers are equal: math, number, choice, text, code, or "package.module:Class"."""
    isolation: Isolation | None = None
    """With the verifier code, what keeps programs apart: bubblewrap, a sandbox; or unsafe, which is none. Default: bubblewrap."""
    budget: Count | None = None
    """With a policy, tokens that one answer may cost: written by the policy and read by the PRM."""
    max_size: Count = 64
    """With a policy, the largest number that a client may set: samples, beams, simulations."""
    chat_timeout: Seconds = 300.0
    """With a policy, seconds that an answer may take (504 afterwards)."""
    chats: Count = 32
    """With a policy, searches that run at once; more are refused with 429."""

    def __post_init__(self) -> None:
        search_of(self.search)
        isolation_of(self.verifier, self.isolation)


CHAT = ChatModel()
"""A chat model where nothing else is given."""
