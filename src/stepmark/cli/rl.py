"""`stepmark rl`: a policy trained with process rewards, and watched while it is."""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from stepmark.cli.paths import checked_input
from stepmark.cli.rl_flags import (
    CreditFlags,
    ImplicitFlags,
    RefitFlags,
    RunFlags,
    credit_of,
    implicit_of,
    refit_of,
    watch_of,
)
from stepmark.cli.rl_run import (
    REPORT_FILE,
    STATE_FILE,
    Asked,
    begin,
    check,
    drop_drafts,
    flat,
    installed,
    is_done,
    prm_settings,
)
from stepmark.errors import UsageError
from stepmark.rl.settings import RL
from stepmark.store import atomic_write, held, naming

if TYPE_CHECKING:
    from stepmark.models.prm import PRM
    from stepmark.problems.answers import Verifier
    from stepmark.records import Problem
    from stepmark.rl.actor import Actor
    from stepmark.rl.monitor import History, Monitor
    from stepmark.rl.online import OnlineImplicit
    from stepmark.rl.refit import Refit
    from stepmark.rl.watched import Watched

_WEIGHTS = "weights.part"
_RUN, _RL, _CREDIT, _IMPLICIT, _REFIT = RunFlags(), RL(), CreditFlags(), ImplicitFlags(), RefitFlags()


def rl_command(
    file: str,
    /,
    *,
    policy: str,
    credit: str,
    out: Path,
    run: RunFlags = _RUN,
    settings: Annotated[RL, Parameter(name="*")] = _RL,
    method: CreditFlags = _CREDIT,
    implicit: ImplicitFlags = _IMPLICIT,
    refit: RefitFlags = _REFIT,
) -> int:
    """Train a policy with outcome or process rewards, and watch it for reward hacking.

    Resumable: after an interruption or a kill, the same command continues from the last saved update to the same weights. A second run with the same OUT is
    refused while the first one lives. OUT is a Hugging Face checkpoint of the last weights with
    its card, history.jsonl, monitor.jsonl and report.html; OUT/best is the checkpoint with the best held-out accuracy before any alarm.

    Args:
        file: PROBLEMS, as JSON lines: {"problem" or "question", "answer"}.
        policy: the policy to train: a folder or hub name of a causal language model, or stepmark:arithmetic.
        credit: outcome, process, min-form, progress, prime, papo, ppo, step-ppo, or "package.module:Class".
        out: the folder of the run.
        run: what is run with what.
        settings: how the policy learns.
        method: the credit method's settings.
        implicit: the online implicit PRM.
        refit: fitting the PRM anew to rollouts of the policy as it is.
    """
    checked_input(file)
    installed()
    asked = Asked(
        file=file,
        policy=policy,
        name=credit,
        credit=credit_of(credit, method),
        out=out,
        run=run,
        settings=settings,
        implicit=implicit,
        online=implicit_of(implicit, settings.token_budget),
        watch=watch_of(run),
        refit=refit_of(refit),
    )
    check(asked)
    with held(out), naming(out):
        problems, held_out, note = _split(file, run, settings.seed)
        run_record = asked.record()
        if is_done(out, run_record):
            # A kill between the last file and the end of the run leaves these.
            drop_drafts(out)
            (out / STATE_FILE).unlink(missing_ok=True)
            print(f"{out}: this run is done, and everything is there; its page is {out / REPORT_FILE}")
            return 0
        if note:
            print(note, file=sys.stderr)
        from stepmark.problems.answers import load_verifier

        with closing(load_verifier(run.verifier, percent=run.percent)) as verifier:
            actor, rows, history = _train(asked, problems, held_out, verifier, run_record)
        _finish(asked, actor, rows, history, run_record, f"{len(problems):,} problems of {Path(file).name}")
    return 0


def _split(file: str, run: RunFlags, seed: int) -> tuple[list[Problem], list[Problem], str]:
    """Problems to train on, problems to measure on, and what was left out.

    Raises:
        UsageError: no problems are left for one of them.
    """
    from stepmark.problems.sources import read_problems

    every = list(read_problems(file))
    if run.held_out.isdigit():
        count = int(run.held_out)
        if not 0 < count < len(every):
            raise UsageError(
                f"--held-out {count}: expected from 1 to under the {len(every):,} problems of {file}, or a file"
            )
        chosen = random.Random(f"{seed} held out").sample(range(len(every)), count)
        held_out = [every[number] for number in sorted(chosen)]
        rest = set(range(len(every))) - set(chosen)
        every = [every[number] for number in sorted(rest)]
    else:
        held_out = list(read_problems(checked_input(run.held_out)))
        if not held_out:
            raise UsageError(f"--held-out {run.held_out}: expected problems, found none")
    measured = {problem.text for problem in held_out}
    kept = [problem for problem in every if problem.text not in measured]
    if not kept:
        raise UsageError(f"{file}: expected problems that are not held out, found none")
    lost = len(every) - len(kept)
    return kept, held_out, f"left out {lost:,} problems that are among the held-out ones" if lost else ""


def _prm(run: RunFlags) -> PRM | None:
    if run.prm is None:
        return None
    from stepmark.models.load import load_prm

    return load_prm(run.prm, **prm_settings(run))


def _actor(asked: Asked) -> Actor:
    from stepmark.rl.actor import Actor

    return Actor.load(
        asked.policy,
        dtype=asked.dtype,
        device=asked.run.device,
        rank=asked.settings.rank,
        reference=not asked.run.no_reference,
        values=asked.credit.needs.values,
        temperature=asked.settings.temperature,
        seed=asked.settings.seed,
    )


def _implicit(asked: Asked, actor: Actor) -> OnlineImplicit | None:
    if asked.online is None:
        return None
    from stepmark.rl.actor import Actor
    from stepmark.rl.online import OnlineImplicit

    place = asked.implicit.implicit_model or asked.policy
    model = Actor.load(
        place,
        dtype=asked.dtype,
        device=asked.run.device,
        rank=asked.settings.rank,
        reference=True,
        temperature=asked.settings.temperature,
        seed=asked.settings.seed,
    )
    if model.tokenizer.get_vocab() != actor.tokenizer.get_vocab():
        raise UsageError(
            f"--implicit-model {place}: expected the tokenizer of the policy {asked.policy}, because it rewards the policy's tokens; found another"
        )
    return OnlineImplicit(model, asked.online)


def _train(
    asked: Asked,
    problems: Sequence[Problem],
    held_out: Sequence[Problem],
    verifier: Verifier,
    run_record: Mapping[str, Any],
) -> tuple[Actor, list[Watched], list[Mapping[str, Any]]]:
    """Run to the end or to the alarm; the policy, the evaluations and the updates."""
    from stepmark.cli.rl_display import Display
    from stepmark.models.backbone import quiet_loading
    from stepmark.rl.credit.methods import check_kind
    from stepmark.rl.monitor import History, Monitor
    from stepmark.rl.refit import RefittedPRM
    from stepmark.rl.trainer import Trainer

    run, settings, out = asked.run, asked.settings, asked.out
    prm = _prm(run)
    if prm is not None:
        check_kind(asked.credit, prm.score_kind, prm=prm.name)
    if prm is not None and asked.refit is not None:
        prm = RefittedPRM(prm)
    with quiet_loading():
        actor = _actor(asked)
        token_rewards = _implicit(asked, actor)
    monitor = Monitor(
        actor,
        out,
        prm=prm,
        implicit=token_rewards,
        watch=asked.watch,
        seed=settings.seed,
        stop_on_hack=run.stop_on_hack,
    )
    history = History(out)
    refit = _refit(asked, actor, prm, problems, verifier, monitor)
    # Only now: what these refuse leaves no run behind that other settings could not go on with.
    begin(out, run_record)
    if (out / STATE_FILE).is_file():
        print(f"{out}: going on from its saved state", file=sys.stderr)
    with Display(monitor, settings.updates) as display:
        trainer = Trainer(
            actor,
            problems,
            held_out,
            verifier,
            asked.credit,
            settings,
            out=out,
            prm=prm,
            token_rewards=token_rewards,
            listeners=(history, monitor, *([] if refit is None else [refit]), display),
        )
        try:
            # A run that was stopped by the alarm and then killed has nothing more to train.
            trainer.run(until=monitor.alarmed if run.stop_on_hack else None)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("the same command goes on from the last saved update") from None
    _settle(monitor, history, trainer.done)
    for row in refit.rows if refit is not None else ():
        took = "replaced" if row.replaced else "kept"
        print(f"after update {row.update:,} the PRM was {took}: {row.why}", file=sys.stderr)
    return actor, monitor.rows, list(history.lines.rows)


def _refit(
    asked: Asked,
    actor: Actor,
    prm: PRM | None,
    problems: Sequence[Problem],
    verifier: Verifier,
    monitor: Monitor,
) -> Refit | None:
    from stepmark.rl.refit import Refit, RefittedPRM

    if asked.refit is None or not isinstance(prm, RefittedPRM):
        return None
    assert asked.run.prm is not None
    return Refit(
        actor,
        prm,
        asked.run.prm,
        problems,
        verifier,
        asked.settings,
        asked.out,
        how=asked.refit,
        monitor=monitor,
        family=asked.run.family,
        device=asked.run.device,
    )


def _settle(monitor: Monitor, history: History, done: int) -> None:
    """Drop lines of updates that a killed run did and did not save."""
    monitor.keep(done)
    history.lines.keep(done)


def _finish(
    asked: Asked,
    actor: Actor,
    rows: Sequence[Watched],
    history: Sequence[Mapping[str, Any]],
    run_record: Mapping[str, Any],
    training: str,
) -> None:
    """The checkpoint, the page, the cards; the last card says that the run is done."""
    from stepmark.cli.rl_display import words
    from stepmark.models.backbone import quiet_loading
    from stepmark.rl.card import CARD_FILE, PolicyCard, policy_card
    from stepmark.rl.monitor import BEST
    from stepmark.rl.report import fall_words, rl_html

    out = asked.out
    draft = out / _WEIGHTS
    shutil.rmtree(draft, ignore_errors=True)
    with quiet_loading():
        actor.save(draft)
    for file in sorted(draft.iterdir()):
        file.replace(out / file.name)
    draft.rmdir()
    settings = {name: str(value) for name, value in flat(run_record).items()}
    title = f"{out.resolve().name}: {asked.policy} with {asked.name}"
    with atomic_write(out / REPORT_FILE) as page:
        page.writelines(
            rl_html(
                rows, history, settings, watch=asked.watch, title=title, facts=(f"Trained on {training}.",)
            )
        )
    card_record = PolicyCard(
        title=out.resolve().name,
        base=asked.policy,
        credit=asked.name,
        rows=rows,
        training=training,
        held_out=f"{rows[-1].solutions:,} held-out problems",
        settings=settings,
        seed=run_record["settings"]["seed"],
        made_with=_versions(),
    )
    best = next((row for row in reversed(rows) if row.best), None)
    if best is not None:
        upto = [row for row in rows if row.update <= best.update]
        with atomic_write(out / BEST / CARD_FILE) as card:
            card.write(
                policy_card(
                    replace(card_record, title=f"{card_record.title}, the best checkpoint", rows=upto)
                )
            )
    with atomic_write(out / CARD_FILE) as card:
        card.write(policy_card(card_record))
    (out / STATE_FILE).unlink(missing_ok=True)
    print(words(rows[-1]))
    if best is not None and best.update != rows[-1].update:
        when = "best" if rows[-1].alarmed is None else "best before the alarm"
        print(f"{when}: {words(best).removesuffix(' (best)')}, in {out / BEST}")
    if rows[-1].alarmed is not None:
        print(
            f"alarm after update {rows[-1].alarmed:,}: read {out / REPORT_FILE} before you trust the PRM's scores"
        )
    elif found := fall_words(rows):
        print(found)
    print(f"page: {out / REPORT_FILE}")


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("stepmark", "torch", "transformers")}
