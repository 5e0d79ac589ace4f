"""`stepmark evaluate search`: search methods at matched compute, beside a majority vote and best-of-N."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from stepmark.cli.evaluating import (
    DEFAULTS,
    EvaluateOptions,
    check,
    folder_of,
    load,
    of_policy,
    provenance,
    settings_of,
    write_result,
)
from stepmark.cli.own import Own, Settings
from stepmark.cli.paths import checked_input
from stepmark.errors import UsageError
from stepmark.records import Problem
from stepmark.search.searching import Choice, ModelSize, Sizes, Steps
from stepmark.store import check_readable


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class ContestOptions:
    """What is compared, and how steps are written."""

    policy: str
    """The policy that writes: a model's folder or hub name, http://HOST/v1#MODEL, or "package.module:factory"."""
    budgets: Annotated[tuple[float, ...], Parameter(consume_multiple=True, negative="")]
    """What a problem may cost, one point of each curve: 500 1000 2000 4000."""
    unit: Literal["tokens", "flops"] = "tokens"
    """Of the budgets: tokens of policy and PRM together, or operations of both (needs the numbers of parameters)."""
    methods: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative="")] = ()
    """Which methods; majority and best-of-n are always among them. Left out: all. One of your own as package.module:Class."""
    settings: Settings = ()
    """A field of your own search, as name=value; once for each. With several of your own: package.module:Class.name=value."""
    seeds: int = 1
    """Run everything so often, with other samples: accuracies are means over them, and their spread is shown."""
    aggregate: str | None = None
    """How step scores make one number. Left out: the PRM's own."""
    expand: int = 4
    """Steps written after each beam or subtree; children of an MCTS node at least."""
    choose: Choice = "best"
    """How beam, dvts, early-rejection, mcts and adaptive choose among their finished solutions: best, majority or vote."""
    balance: float = 0.2
    """Temperature of rebase."""
    c_puct: float = 1.0
    """Exploration of mcts."""
    backup: Literal["mean", "max"] = "mean"
    """Value of a node of mcts."""
    tau: int = 16
    """Tokens after which early-rejection scores the beginning of a step."""
    pilot: int = 12
    """Problems that sizes are fitted on; 0 takes what a solution costs best-of-N for granted."""
    stop: str = "\\n"
    """The text that ends a step."""
    max_tokens: int = 256
    """The longest step."""
    max_steps: int = 40
    """The longest solution in steps."""
    max_solution_tokens: int = 1024
    """The longest solution that is written in one go."""
    temperature: float = 0.7
    """Of the samples."""
    top_p: float = 1.0
    """Of the samples."""
    prompt: Literal["chat", "text"] = "chat"
    """Ask as the user's turn of a chat, or as plain text (base models)."""
    instruction: str | None = None
    """Said after the problem. Left out: to go step by step and to box the answer."""
    verifier: str = "math"
    """What says whether an answer is right: math, number, choice, text, or "package.module:Class"."""
    percent: Literal["distinct", "sign"] = "distinct"
    """Whether 10% is 1/10 only, or 10 too (GSM8K's references leave the sign out)."""
    policy_parameters: float | None = None
    """Weights of the policy, to count operations, without the table of embeddings."""
    prm_parameters: float | None = None
    """Weights of the PRM, to count operations."""
    in_flight: int = 16
    """Problems that are searched at once."""
    memory_tokens: int | None = None
    """Tokens whose keys and values the PRM keeps at most. Left out: 65,536."""
    policy_memory_tokens: int = 65_536
    """Tokens whose keys and values a policy in this process keeps; 0 for none."""
    replies: str | None = None
    """The store of replies, such as an earlier FOUND.replies.sqlite of stepmark search. Left out: one in --out."""


# What --set says stands in the result beside each search of one's own, with the settings that it was left with.
_NO_RESULTS = ("settings", "in_flight", "memory_tokens", "policy_memory_tokens", "replies")


def search_command(file: str, /, *, contest: ContestOptions, options: EvaluateOptions = DEFAULTS) -> int:
    """Search methods at matched compute: accuracy against what policy and PRM spend together.

    Every method is made as large as a budget allows and run on every problem; a majority vote and best-of-N always stand beside it. A killed
    run goes on with the same command. The report says how wide a beam should be, and trees.html shows searches on which methods
    disagree.

    Args:
        file: problems with reference answers, as JSON lines.
        contest: what is compared.
        options: the flags.
    """
    from stepmark.evaluation.search import Arena, Contest
    from stepmark.evaluation.search_entrants import METHODS, Shape, entrants
    from stepmark.evaluation.search_report import NAME, Setting, evaluate
    from stepmark.models import policies, scorer
    from stepmark.models.identity import identity_of
    from stepmark.models.replies import ReplyFile
    from stepmark.problems import answers
    from stepmark.search.searching import Grading, Searching
    from stepmark.show.search_page import SearchPage, search_html
    from stepmark.store import atomic_write, hold

    theirs = _own(contest)
    settings = Contest(
        budgets=contest.budgets,
        unit=contest.unit,
        methods=tuple(name for name in contest.methods if name not in theirs) if contest.methods else METHODS,
        own=tuple(one.method for one in theirs.values()),
        seeds=contest.seeds,
        pilot=contest.pilot,
        shape=Shape(
            expand=contest.expand,
            choose=contest.choose,
            balance=contest.balance,
            c_puct=contest.c_puct,
            backup=contest.backup,
            tau=contest.tau,
        ),
    )
    how = _steps(contest, options)
    _check(file, contest, options)
    entrants(settings.methods, settings.shape, settings.own)
    problems, facts = _problems(file, options.limit)
    folder = folder_of(NAME, options)
    with ExitStack() as stack:
        stack.enter_context(hold(folder))
        verifier = stack.enter_context(
            closing(answers.load_verifier(contest.verifier, percent=contest.percent))
        )
        prm = load(options, also=of_policy(contest.policy))
        grading = Grading(aggregate=contest.aggregate or prm.default_aggregate, kind=prm.score_kind)
        sizes = Sizes(policy=_size(contest.policy_parameters), prm=_size(contest.prm_parameters))
        policy = policies.load_policy(contest.policy, dtype=options.dtype, device=options.device, counts=True)
        store = stack.enter_context(closing(ReplyFile(contest.replies or folder / "replies.sqlite")))
        arena = Arena(
            answerers={
                **policies.answerers(policy),
                **scorer.answerers(prm, memory_tokens=contest.memory_tokens),
                **answers.answerers(verifier),
            },
            verifier=verifier,
            common=Searching(how=how, grading=grading, sizes=sizes),
            store=store,
            in_flight=contest.in_flight,
            tell=lambda line: print(
                f"{line}; {policy.tokens_written:,} tokens written so far", file=sys.stderr, flush=True
            ),
        )
        try:
            report = evaluate(
                problems,
                settings,
                arena,
                Setting(
                    prm=prm.name,
                    policy=policy.name,
                    threshold=prm.default_threshold,
                    settings={
                        **_settings(contest, options),
                        **_told(theirs),
                        "aggregate": grading.aggregate,
                        "prm_identity": identity_of(prm),
                        "policy_identity": policy.identity,
                    },
                    data=provenance([file]),
                    facts=facts,
                    resamples=options.resamples,
                    seed=options.seed,
                ),
            )
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"every reply is kept in {store.path}; the same command continues"
            ) from None
    if report.trees:
        page = SearchPage(
            title=f"Searches on which methods disagree: {file}",
            searches=report.trees,
            facts=(f"Scores by {prm.name}.",),
        )
        with atomic_write(folder / "trees.html") as handle:
            handle.writelines(search_html(page))
    return write_result(report.result, folder)


def _own(contest: ContestOptions) -> dict[str, Own]:
    """The searches of one's own among --methods, by how they are named, each with its --set.

    Raises:
        UsageError: no such search, one named twice, or a setting that belongs to none.
    """
    from stepmark.cli.search_own import own_search

    names = [name for name in contest.methods if ":" in name]
    given: dict[str, list[str]] = {name: [] for name in names}
    if len(given) < len(names):
        raise UsageError(f"--methods {' '.join(names)}: one is named twice")
    for one in contest.settings:
        key = one.partition("=")[0]
        if not names:
            raise UsageError(
                f"--set {one}: it sets a field of a search of your own, and --methods names none (package.module:Class); the library's have "
                "their flags"
            )
        whose = next((name for name in names if key.startswith(f"{name}.")), None)
        if whose is None and len(names) > 1:
            raise UsageError(
                f"--set {one}: of which search? Expected one of " + ", ".join(f"{n}.{one}" for n in names)
            )
        given[whose or names[0]].append(one if whose is None else one[len(whose) + 1 :])
    return {name: own_search(name, settings, flag="--methods") for name, settings in given.items()}


def _told(theirs: Mapping[str, Own]) -> dict[str, Any]:
    """What the result keeps of searches of one's own."""
    filled_in = ("how", "grading", "budget", "sizes")
    told = {
        one.method.name: {
            "settings": {key: value for key, value in asdict(one.method).items() if key not in filled_in},
            "source": one.source,
        }
        for one in theirs.values()
    }
    return {"own": json.loads(json.dumps(told, default=str))} if told else {}


def _steps(contest: ContestOptions, options: EvaluateOptions) -> Steps:
    given: dict[str, Any] = {} if contest.instruction is None else {"instruction": contest.instruction}
    return Steps(
        stop=contest.stop.replace("\\n", "\n"),  # as a shell passes it
        max_tokens=contest.max_tokens,
        max_steps=contest.max_steps,
        max_solution_tokens=contest.max_solution_tokens,
        temperature=contest.temperature,
        top_p=contest.top_p,
        seed=options.seed,
        prompt=contest.prompt,
        **given,
    )


def _problems(file: str, limit: int | None) -> tuple[list[Problem], tuple[str, ...]]:
    from stepmark.problems.sources import read_problems

    every = list(read_problems(file))
    if limit is None or limit >= len(every):
        return every, ()
    kept = [every[at * len(every) // limit] for at in range(limit)]
    return kept, (
        f"Only {limit:,} of the file's {len(every):,} problems were taken (--limit), evenly spaced.",
    )


def _size(parameters: float | None) -> ModelSize | None:
    return None if parameters is None else ModelSize(parameters=parameters)


def _check(file: str, contest: ContestOptions, options: EvaluateOptions) -> None:
    check(options, also=of_policy(contest.policy))
    if options.scores is not None or options.model_name is not None:
        raise UsageError(
            "--scores and --model-name: a search asks the PRM for what it writes; there are no scores to read"
        )
    if contest.in_flight < 1:
        raise UsageError(f"--in-flight {contest.in_flight}: expected 1 or more")
    if contest.memory_tokens is not None and contest.memory_tokens < 1:
        raise UsageError(f"--memory-tokens {contest.memory_tokens}: expected 1 or more")
    if contest.policy_memory_tokens < 0:
        raise UsageError(f"--policy-memory-tokens {contest.policy_memory_tokens}: expected 0 or more")
    if contest.unit == "flops" and None in (contest.policy_parameters, contest.prm_parameters):
        raise UsageError("--unit flops needs --policy-parameters and --prm-parameters")
    checked_input(file, again=True)
    check_readable(file)


def _settings(contest: ContestOptions, options: EvaluateOptions) -> dict[str, Any]:
    chosen = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in asdict(contest).items()
        if key not in _NO_RESULTS and value not in (None, ())
    }
    return settings_of(options) | chosen
