"""`stepmark sample`: the command of `stepmark.sample`."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from stepmark.backends import INSTRUCTION
from stepmark.backends.cluster import Cluster
from stepmark.cli import options as opt
from stepmark.cli import print_note
from stepmark.errors import UsageError
from stepmark.models.policies import lazy_policy
from stepmark.sampling.run import sample


@opt.documented_by(sample)
def sample_command(
    file: Annotated[opt.FileOrDash, Parameter(help=f"problems: {opt.ROWS}")],
    /,
    *,
    policy: opt.PolicyName,
    out: Annotated[opt.FileOrDash | None, opt.in_common("--out")] = None,
    n: Annotated[int, opt.in_common("--n")] = 8,
    temperature: Annotated[float, opt.in_common("--temperature")] = 0.8,
    max_tokens: Annotated[int, opt.in_common("--max-tokens")] = 1024,
    verifier: opt.Verifier | None = "math",
    limit: opt.Limit | None = None,
    columns: opt.Columns | None = None,
    keep_going: opt.KeepGoing = False,
    seed: Annotated[int, opt.in_common("--seed")] = 0,
    top_p: Annotated[float, opt.in_method("--top-p")] = 1.0,
    prompt: Annotated[Literal["chat", "text"], opt.in_method("--prompt")] = "chat",
    instruction: Annotated[str, opt.in_method("--instruction")] = INSTRUCTION,
    answers: opt.Answers = "stated",
    isolation: opt.IsolationOption | None = None,
    in_flight: Annotated[int, opt.in_machine("--in-flight")] = 64,
    quantize: opt.Quantize | None = None,
    place: opt.PolicyDevice = opt.PolicyDevice(),
    cluster: Annotated[Cluster, opt.CLUSTER] = Cluster(),
) -> int:
    """See `stepmark.sample`."""
    if out is None:
        raise UsageError("expected `out`: the file that the solutions are written to")
    samples = sample(
        file,
        lazy_policy(policy, quantize=quantize, **vars(place)),
        n=n,
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
        prompt=prompt,
        instruction=instruction,
        verifier=verifier,
        answers=answers,
        isolation=isolation,
        seed=seed,
        limit=limit,
        out=out,
        columns=columns,
        keep_going=keep_going,
        in_flight=in_flight,
        cluster=cluster,
    )
    print_note(samples.summary)
    return 0
