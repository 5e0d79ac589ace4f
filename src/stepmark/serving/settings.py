"""Settings of a server: its limits and defaults, and how it answers as a chat model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stepmark.data.steps.splitting import split as split_text
from stepmark.errors import UsageError
from stepmark.metrics.aggregate import check_aggregate
from stepmark.searches.base import Choice
from stepmark.settings import settings
from stepmark.verifiers.base import isolation_of
from stepmark.verifiers.checks import check_names
from stepmark.verifiers.code_sandbox import Isolation

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]

MOST_CANDIDATES = 256
"""Completions that a request may ask for, whatever the server's own limit."""

Search = Literal["best-of-n", "majority", "weighted-vote"]
SEARCHES: dict[Search, tuple[Choice, str]] = {
    "best-of-n": ("best", "best-of-{n}"),
    "majority": ("majority", "majority-of-{n}"),
    "weighted-vote": ("vote", "vote-of-{n}"),
}
"""How each search chooses, and its name as a model."""


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
    """Tokens whose keys and values are kept, over all clients. Default: 65,536."""
    queue_tokens: Count | None = None
    """Tokens that may wait; more are refused with 429. Default: 32 batches."""
    timeout: Seconds = 60.0
    """Seconds a request may take where it does not say (504 afterwards)."""
    grace: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 30.0
    """Seconds that SIGTERM or Ctrl-C gives to requests in progress."""
    max_body_mb: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 8
    """Megabytes (2^20 bytes) of a request."""
    max_solutions: Count = 1024
    """Solutions, candidates, steps of a session or sequences of a request."""
    sessions: Count = 1024
    """Sessions at once; for more, the longest idle ones are ended."""
    session_nodes: Annotated[int, Field(ge=2)] = 4096
    """Steps that a session holds at once; at least 2: a step, and the step that it follows."""
    session_memory_mb: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1024
    """Megabytes (2^20 bytes), about, that all sessions hold: texts, and what is known of their tokens. For more, the longest idle ones are ended."""

    def __post_init__(self) -> None:
        if self.aggregate is not None:
            check_aggregate(self.aggregate, "probability")
        if self.checks != "auto":
            check_names(self.checks)

    @property
    def max_body(self) -> int:
        """Bytes of a request."""
        return int(self.max_body_mb * (1 << 20))

    @property
    def session_memory(self) -> int:
        """Bytes that all sessions hold."""
        return int(self.session_memory_mb * (1 << 20))


DEFAULTS = ServerSettings()
"""What holds where nothing else is given."""


@settings
class ChatModel:
    """Best-of-N as a chat model, at /v1/chat/completions: what holds where a request does not say.

    Raises:
        UsageError: settings that cannot work together.
    """

    search: Search = "best-of-n"
    """With a policy, which completion is given: best-of-n, the one with the highest score; majority, one with the commonest answer; weighted-vote,
    one with the answer of the highest sum of scores."""
    n: Count = 8
    """With a policy, completions to choose from."""
    max_n: Annotated[int, Field(ge=1, le=MOST_CANDIDATES)] = 64
    """With a policy, completions that a request may ask for."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.7
    """With a policy, temperature of the completions."""
    split: str = "auto"
    """With a policy, how a completion is split into steps (stepmark split)."""
    marker: str | None = None
    """With a policy, the text that ends each step, for `split` marker and auto."""
    verifier: str = "math"
    """With a policy, what says which answers are equal: math, number, choice, text, code, or "package.module:Class"."""
    isolation: Isolation | None = None
    """With the verifier code, what keeps programs apart: bubblewrap, a sandbox; or unsafe, which is none. Default: bubblewrap."""
    chat_name: str | None = None
    """With a policy, the chat model's name for clients. Default: such as best-of-8."""
    chat_timeout: Seconds = 300.0
    """With a policy, seconds that an answer may take where a request does not say (504 afterwards)."""
    policy_requests: Count = 32
    """With a policy, conversations that it works on at once; four times as many may wait, more are refused with 429."""

    def __post_init__(self) -> None:
        if self.n > self.max_n:
            raise UsageError(f"`n` {self.n}: expected 1 to {self.max_n}, which is `max_n`")
        isolation_of(self.verifier, self.isolation)
        if not self.temperature and self.n > 1:
            raise UsageError(
                f"`temperature` 0: all {self.n} candidates would be the same; expected more than 0"
            )
        if self.marker is None or self.marker not in "-":
            split_text("-", self.split, marker=self.marker)

    @property
    def choice(self) -> Choice:
        """How a completion is chosen."""
        return SEARCHES[self.search][0]

    @property
    def model(self) -> str:
        """The model's name for clients."""
        return self.chat_name or SEARCHES[self.search][1].format(n=self.n)


CHAT = ChatModel()
"""A chat model where nothing else is given."""
