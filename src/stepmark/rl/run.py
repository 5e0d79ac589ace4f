"""`stepmark.train_policy`: train a policy with outcome or process rewards, watched for reward hacking; resumable from the last saved update."""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, final

from pydantic import Field

from stepmark.data.reading import Source
from stepmark.data.steps.splitting import split
from stepmark.errors import UsageError
from stepmark.models.identity import checkpoint_fingerprint, named
from stepmark.models.lazy import Lazy, arguments_of, check_device, note_idle
from stepmark.models.load import PRMLike, lazy_prm, read_by
from stepmark.models.places import find_checkpoint
from stepmark.models.prm import PRM
from stepmark.problems.loading import read_problems
from stepmark.records import Problem
from stepmark.rl.credit import Credit
from stepmark.rl.hacking import Watched
from stepmark.rl.settings import Implicit, PolicyTraining, Refitting
from stepmark.settings import checked
from stepmark.store import LOCK_FILE, RunInput, atomic_write, differences, held, naming, run_input
from stepmark.training.run import check_packages
from stepmark.verifiers.base import Verifier, VerifierLike, open_verifier, report_isolation, verifier_facts
from stepmark.verifiers.code_sandbox import Isolation
from stepmark.words import amount

if TYPE_CHECKING:
    from stepmark.rl.actor import Actor
    from stepmark.rl.monitor import Monitor
    from stepmark.rl.prime import OnlineImplicit

RUN_FILE, STATE_FILE, REPORT_FILE = "run.json", "state.pt", "report.html"
_LAST = ("config.json", REPORT_FILE, "README.md")
"""What a run writes when it has ended, the card last."""
_NO_RESULTS = ("save_every", "token_budget")
"""Settings that change no result; a run may be continued with others."""
_WEIGHTS = "weights.part"
_TRAINING = PolicyTraining()


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedPolicy:
    """A finished run of policy training."""

    out: Path
    """Folder of the run: a Hugging Face checkpoint of the last weights, with its card, `report.html`, `monitor.jsonl` and `history.jsonl`."""
    best: Path | None
    """The checkpoint with the best held-out accuracy before any alarm; None where no evaluation was made."""
    evaluations: Sequence[Watched]
    """Figures of each evaluation on held-out problems, the first before any update."""
    updates: Sequence[Mapping[str, Any]]
    """Figures of each update."""
    manifest: Mapping[str, Any]
    """Everything that decides the result: problems, models by their files, settings; as in `run.json`."""
    summary: str
    """What the command prints at its end."""

    @property
    def alarmed(self) -> int | None:
        """The update after which the monitor raised its alarm; None without one."""
        return self.evaluations[-1].alarmed if self.evaluations else None

    def __repr__(self) -> str:
        return f"<TrainedPolicy in {self.out}, {amount(len(self.updates), 'update')}>"


@checked
def train_policy(
    problems: Source,
    policy: str,
    prm: PRMLike | None = None,
    *,
    out: str | Path,
    credit: str | Credit | None = None,
    settings: Sequence[str] = (),
    held_out: int | Source | None = None,
    training: PolicyTraining = _TRAINING,
    stop_on_hack: bool = False,
    verifier: VerifierLike = "math",
    answers: Literal["stated", "marked"] = "marked",
    isolation: Isolation | None = None,
    columns: Mapping[str, str] | None = None,
    threshold: Annotated[float, Field(allow_inf_nan=False)] | None = None,
    implicit: Implicit | None = None,
    refit: Refitting | None = None,
    no_reference: bool = False,
    dtype: Literal["auto", "float32", "bfloat16"] = "auto",
    device: str = "auto",
    progress: bool = True,
) -> TrainedPolicy:
    """Train a policy with outcome or process rewards, and watch it for reward hacking.

    The policy writes several solutions of each problem, a verifier compares their answers, the PRM scores their steps, and a credit method
    turns both into an advantage for each token. A run that is interrupted continues from the last saved update, to the same weights, when
    the same call is made again. A second run with the same `out` is refused while the first one works.

    Args:
        problems: a file or a folder of them (JSON lines, CSV, TSV, Parquet, a JSON list), dicts, records, a data set or a data frame; each with a reference answer.
        policy: the policy to train: a folder or hub name of a causal language model, or stepmark:arithmetic.
        prm: the PRM, or its name: "default", a hub name, a folder, the address of a server, or "package.module:factory". Beside a credit
            method that reads no steps it only watches.
        out: folder of the run: the checkpoint of the last weights with its card, report.html, history.jsonl and monitor.jsonl; its folder
            `best` is the checkpoint with the best held-out accuracy before any alarm.
        credit: the credit method: grpo, rloo, process-grpo, min-form, progress, prime, ppo, discounted, mt-grpo, or "package.module:Class".
            Default: min-form with a PRM, prime with an implicit one, else grpo.
        settings: a field of the credit method, as name=value; repeat for several.
        held_out: problems to measure on, which are not trained on: how many to take out of the problems, or a file of others. Default: 100, at most a fifth of
            the problems.
        training: how the policy learns.
        stop_on_hack: stop at the monitor's alarm.
        verifier: what says whether an answer is right: math, number, choice, text, code, or "package.module:Class".
        answers: which answers of a solution count: stated, also its concluding statement; marked, only a box, ####, "the answer is".
        isolation: with the verifier code, what keeps programs apart: bubblewrap, a sandbox; or unsafe, which is none: they can use the
            network and your files. Default: bubblewrap.
        columns: names of columns, where they differ: problem=question,answer=gold.
        threshold: in the monitor, a step whose score is under this is an error. Default: the PRM's own.
        implicit: train an implicit PRM beside the policy, on outcomes (PRIME). Default: none.
        refit: train the PRM, a LoRA adapter, further on rollouts of the policy from time to time. Default: never.
        no_reference: keep no copy of the starting policy: less memory and time, and the divergence from it is not known.
        dtype: precision of the policy. auto: as saved with LoRA, else float32, because small updates vanish in bfloat16.
        device: where models run: auto, cpu, cuda or cuda:NUMBER.
        progress: show how far the run is, on standard error.

    Returns:
        The folder of the run, and the figures of its updates and evaluations.

    Raises:
        InputError: a problem that cannot be read or has no reference answer; a reward that is no number.
        UsageError: settings that cannot work together, or a folder of something else or of a run with other settings or models.
        CheckpointError: a model that cannot be loaded; a loss that is not finite (the state before it is kept).
        MissingExtraError: torch, transformers or matplotlib is not installed.
    """
    check_packages("torch", "transformers", "matplotlib")
    from stepmark.rl.credit.assignment import load_credit

    if credit is None:
        credit = "prime" if implicit is not None else "grpo" if prm is None else "min-form"
    method, source = load_credit(credit, settings)
    if implicit is not None and not method.needs.tokens:
        note_idle({"implicit": implicit}, {"implicit": f"`credit` {method.name} reads no token rewards"})
        implicit = None
    run = _PolicyTrainingRun(
        out=Path(out),
        policy=policy,
        prm=_lazy(prm, device),
        credit=method,
        source=source,
        training=training,
        threshold=threshold,
        implicit=implicit,
        refit=refit,
        stop_on_hack=stop_on_hack,
        no_reference=no_reference,
        dtype=dtype,
        device=device,
        shown=progress,
    )
    run.check()
    judge = verifier_facts(verifier, answers, isolation)
    given = run_input(problems, again=True)
    measured = None if held_out is None or isinstance(held_out, int) else run_input(held_out, again=True)
    with open_verifier(verifier, answers=answers, isolation=isolation) as checker, held(run.out):
        learnt, kept_out, lost = _split(given, measured, held_out, columns, training.seed)
        record = run.record(
            {
                "problems": given.manifest,
                "held_out": held_out if measured is None else measured.manifest,
                "columns": columns,
                **judge,
            }
        )
        if _is_done(run.out, record):
            # A kill between the last file and the end of the run leaves these.
            _drop_drafts(run.out)
            (run.out / STATE_FILE).unlink(missing_ok=True)
            summary = f"{run.out}: this run is done, all of its files are there; its page is {run.out / REPORT_FILE}"
            return _result(run.out, record, summary)
        if run.prm is not None and not method.needs.steps:
            run.note(
                f"credit {method.name} reads no step scores: the PRM watches the run and rewards nothing; min-form, process-grpo and progress use it"
            )
        if lost:
            run.note(f"left out {amount(lost, 'problem')} found among the held-out ones")
        if progress:
            report_isolation(verifier, isolation)
        with naming(run.out):
            actor, monitor, notes = run.train(learnt, kept_out, checker, record)
            name = "rows" if given.name == "rows" else Path(given.name).name
            summary = run.finish(actor, monitor, record, f"{amount(len(learnt), 'problem')} of {name}")
        return _result(run.out, record, "\n".join([*notes, summary]))


@dataclass(frozen=True, kw_only=True, slots=True)
class _PolicyTrainingRun:
    """A run of policy training."""

    out: Path
    policy: str
    prm: PRM | Lazy[PRM] | None
    credit: Credit
    source: Mapping[str, Any] | None
    """Of a credit method that is the caller's own."""
    training: PolicyTraining
    threshold: float | None
    implicit: Implicit | None
    refit: Refitting | None
    stop_on_hack: bool
    no_reference: bool
    dtype: Literal["auto", "float32", "bfloat16"]
    device: str
    shown: bool

    def note(self, text: str) -> None:
        """Print a note on standard error."""
        if self.shown:
            sys.stderr.write(f"{text}\n")

    def check(self) -> None:
        """Refuse what cannot work before anything is loaded."""
        name, needs, training, prm = self.credit.name, self.credit.needs, self.training, self.prm
        usual, refit = PolicyTraining(), self.refit is not None
        split("1", training.split)
        if self.out.exists() and not self.out.is_dir():
            raise UsageError(f"`out` {self.out}: expected a folder's name, found a file")
        check_device(self.device)
        if self.device != "auto":
            from stepmark.models.backbone import compute_device

            compute_device(self.device)
        if isinstance(prm, Lazy):
            prm.check()
        if self.policy.startswith(("http://", "https://")):
            raise UsageError(
                f"`policy` {self.policy}: a server's weights cannot be trained here; give a folder or a hub name"
            )
        if needs.steps and prm is None:
            raise UsageError(
                f"`credit` {name} needs a PRM: give `prm`, such as default, a folder, a hub name or a server's address"
            )
        if needs.tokens and self.implicit is None:
            raise UsageError(
                f"`credit` {name} needs an implicit PRM: give `implicit`, which starts one from the policy's weights"
            )
        if training.group < 2 and self.source is None and not needs.values:
            raise UsageError(
                f"`group` {training.group}: `credit` {name} compares solutions of one problem; expected 2 or more"
            )
        if self.dtype == "bfloat16" and training.lora_rank is None:
            raise UsageError(
                "`dtype` bfloat16: small updates of all weights vanish in it; leave it out, or train adapters with `lora_rank`"
            )
        if training.kl_weight > 0 and self.no_reference:
            raise UsageError("`kl_weight` needs the starting policy, which `no_reference` does not keep")
        if refit and prm is not None and not isinstance(prm, Lazy):
            raise UsageError(
                "`refit`: expected the PRM by its name, a checkpoint's, which is trained further"
            )
        if refit and isinstance(prm, Lazy) and prm.arguments.get("tokenizer") is not None:
            raise UsageError(
                "`refit`: the weights of a PRM behind a server cannot be trained here; name its folder with `prm`"
            )
        idle = {
            "kl": "its weight, `kl_weight`, is 0" if training.kl_weight == 0 else "",
            "value_weight": "" if needs.values else f"`credit` {name} has no critic",
            **dict.fromkeys(("stop_on_hack", "refit"), "there is no `prm`" if prm is None else ""),
            # An implicit PRM has a threshold too.
            "threshold": "there is no `prm`" if prm is None and self.implicit is None else "",
        }
        identity = {
            "kl": training.kl != usual.kl or None,
            "value_weight": training.value_weight != usual.value_weight or None,
            "stop_on_hack": self.stop_on_hack or None,
            "refit": self.refit,
            "threshold": self.threshold,
        }
        note_idle(identity, {setting: why for setting, why in idle.items() if why})

    def record(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """All that decides the result, as plain data; models by their files, so that none is exchanged unnoticed."""
        prm, identity, family = self.prm, None, None
        if prm is not None:
            identity, family = prm.identity, arguments_of(prm).get("family")
        settings = {key: value for key, value in asdict(self.training).items() if key not in _NO_RESULTS}
        body = {
            "command": "rl",
            **inputs,
            "policy": _identity(self.policy),
            "prm": identity,
            "family": family,
            "dtype": self.dtype,
            "reference": not self.no_reference,
            "credit": {"name": self.credit.name, **asdict(self.credit)},  # type: ignore[call-overload]
            **({} if self.source is None else {"source": dict(self.source)}),
            "implicit": None if self.implicit is None else asdict(self.implicit),
            "refit": None if self.refit is None else asdict(self.refit),
            "settings": settings,
            "threshold": self.threshold,
        }
        plain: dict[str, Any] = json.loads(json.dumps(body, default=str))  # a setting may be a path
        return plain

    def train(
        self,
        problems: Sequence[Problem],
        held_out: Sequence[Problem],
        verifier: Verifier,
        record: Mapping[str, Any],
    ) -> tuple[Actor, Monitor, list[str]]:
        """Run to the end or to the alarm; the policy, its monitor, and notes on refits."""
        from stepmark.models.backbone import quiet_loading
        from stepmark.rl.credit.assignment import check_kind
        from stepmark.rl.monitor import Monitor
        from stepmark.rl.policy_trainer import PolicyTrainer
        from stepmark.rl.refit import Refit
        from stepmark.rl.report import PolicyProgressLines
        from stepmark.training.state import write_run

        prm = self.prm.load() if isinstance(self.prm, Lazy) else self.prm
        if prm is not None:
            check_kind(self.credit, prm.score_kind, prm=prm.name)
        with quiet_loading():
            actor = self._actor(reference=not self.no_reference, values=self.credit.needs.values)
            token_rewards = self._implicit()
        monitor = Monitor(
            actor,
            self.out,
            prm=prm,
            implicit=token_rewards,
            threshold=self.threshold,
            seed=self.training.seed,
            stop_on_hack=self.stop_on_hack,
        )
        refit = None
        if self.refit is not None and isinstance(self.prm, Lazy):
            seed = self.training.seed
            refit = Refit(self.prm.name, problems, self.refit, seed=seed, device=self.device)
        # Only now: what these refuse leaves no run behind that other settings could not continue.
        _drop_drafts(self.out)
        if not (self.out / RUN_FILE).is_file():
            write_run(self.out / RUN_FILE, record)
        if (self.out / STATE_FILE).is_file():
            self.note(f"{self.out}: continuing from its saved state")
        display = PolicyProgressLines(monitor, self.training.updates) if self.shown else None
        trainer = PolicyTrainer(
            actor,
            problems,
            held_out,
            verifier,
            self.credit,
            self.training,
            out=self.out,
            prm=prm,
            token_rewards=token_rewards,
            listeners=[item for item in (monitor, refit, display) if item is not None],
        )
        if refit is not None:
            refit.attach(trainer, monitor)
        try:
            # A run that was stopped by the alarm and then killed has nothing more to train.
            trainer.run(until=monitor.alarmed if self.stop_on_hack else None)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("the same command continues from the last saved update") from None
        # Lines of updates that a killed run did and did not save.
        monitor.keep(trainer.done)
        notes = [
            f"after update {row.update:,} the PRM was {'replaced' if row.replaced else 'kept'}: {row.why}"
            for row in (refit.rows if refit is not None else ())
        ]
        return actor, monitor, notes

    def _actor(self, *, reference: bool, values: bool = False) -> Actor:
        from stepmark.rl.actor import Actor

        training = self.training
        # Small updates vanish in bfloat16, unless adapters in float32 take them.
        exact = self.dtype == "auto" and training.lora_rank is None
        return Actor.load(
            self.policy,
            dtype="float32" if exact else self.dtype,
            device=self.device,
            rank=training.lora_rank,
            reference=reference,
            values=values,
            temperature=training.temperature,
            seed=training.seed,
        )

    def _implicit(self) -> OnlineImplicit | None:
        if self.implicit is None:
            return None
        from stepmark.rl.prime import OnlineImplicit

        model = self._actor(reference=True)
        return OnlineImplicit(model, self.implicit, token_budget=self.training.token_budget)

    def finish(self, actor: Actor, monitor: Monitor, record: Mapping[str, Any], learnt: str) -> str:
        """Write the checkpoint, the page and the cards, the run's own card last; the summary."""
        from stepmark.models.backbone import quiet_loading
        from stepmark.rl.monitor import BEST
        from stepmark.rl.report import fall_words, policy_card, rl_html, words
        from stepmark.training.report import CARD_FILE, CardFacts

        out, name, rows, best = self.out, self.credit.name, monitor.rows, monitor.best
        draft = out / _WEIGHTS
        shutil.rmtree(draft, ignore_errors=True)
        with quiet_loading():
            actor.save(draft)
        for file in sorted(draft.iterdir()):
            file.replace(out / file.name)
        draft.rmdir()
        settings = {key: str(value) for key, value in _flat(record).items()}
        title = out.resolve().name
        with atomic_write(out / REPORT_FILE) as page:
            page.writelines(
                rl_html(
                    rows,
                    monitor.history.rows,
                    settings,
                    title=f"Training of {title}: {self.policy} with {name}",
                    facts=(f"Trained on {learnt}.",),
                )
            )
        facts = CardFacts(title=title, base=self.policy, settings=settings, seed=self.training.seed)
        if best is not None:
            upto = [row for row in rows if row.update <= best.update]
            of_best = replace(facts, title=f"{title}, the best checkpoint")
            with atomic_write(out / BEST / CARD_FILE) as card:
                card.write(policy_card(of_best, upto, credit=name, data=learnt))
        with atomic_write(out / CARD_FILE) as card:
            card.write(policy_card(facts, rows, credit=name, data=learnt))
        (out / STATE_FILE).unlink(missing_ok=True)
        lines = [words(rows[-1])]
        if best is not None and best.update != rows[-1].update:
            when = "best" if rows[-1].alarmed is None else "best before the alarm"
            lines.append(f"{when}: {words(best).removesuffix(' (best)')}, in {out / BEST}")
        if rows[-1].alarmed is not None:
            lines.append(
                f"alarm after update {rows[-1].alarmed:,}: read {out / REPORT_FILE} before you trust the PRM's scores"
            )
        elif fall := fall_words(rows):
            lines.append(fall)
        return "\n".join([*lines, f"wrote {out / REPORT_FILE}"])


def _split(
    given: RunInput,
    measured: RunInput | None,
    held_out: int | Source | None,
    columns: Mapping[str, str] | None,
    seed: int,
) -> tuple[list[Problem], list[Problem], int]:
    """Problems to train on, problems to measure on, and how many of the former were left out because they are among the latter."""
    every = list(read_problems(given.source, columns=columns))
    if measured is None:
        count = max(1, min(100, len(every) // 5)) if held_out is None else held_out
        if not isinstance(count, int) or not 0 < count < len(every):
            raise UsageError(
                f"{given.name}: expected at least 2 problems, of which one is held out, found {len(every)}"
                if held_out is None
                else f"`held_out` {held_out}: expected from 1 to under the {amount(len(every), 'problem')} of {given.name}, or a file"
            )
        chosen = set(random.Random(f"{seed} held out").sample(range(len(every)), count))
        others = [problem for number, problem in enumerate(every) if number in chosen]
        every = [problem for number, problem in enumerate(every) if number not in chosen]
    else:
        others = list(read_problems(measured.source, columns=columns))
        if not others:
            raise UsageError(f"`held_out` {measured.name}: expected problems, found none")
    texts = {problem.text for problem in others}
    learnt = [problem for problem in every if problem.text not in texts]
    if not learnt:
        raise UsageError(f"{given.name}: expected problems that are not held out, found none")
    return learnt, others, len(every) - len(learnt)


def _lazy(prm: PRMLike | None, device: str) -> PRM | Lazy[PRM] | None:
    """The PRM, on the policy's device as far as a device means something for it."""
    named_prm = lazy_prm(prm) if isinstance(prm, str) else prm
    if not isinstance(named_prm, Lazy) or "device" in named_prm.arguments:
        return named_prm
    return named_prm.with_arguments(**read_by(named_prm.name, {"device": device}))


def _is_done(out: Path, record: Mapping[str, Any]) -> bool:
    """Whether this very run is finished there, with all of its files. A folder of something else is refused."""
    if not (out / RUN_FILE).is_file():
        others = [file.name for file in out.iterdir() if file.name != LOCK_FILE and not _is_draft(file)]
        if others:
            raise UsageError(
                f"`out` {out}: expected a new folder or that of a run, found {sorted(others)[0]} in it"
            )
        return False
    changed = differences(json.loads((out / RUN_FILE).read_text(encoding="utf-8")), record)
    if changed:
        raise UsageError(
            f"`out` {out} is of a run that was made otherwise: {'; '.join(changed)}. Run with the same settings and models to continue it, or take "
            "another folder"
        )
    from stepmark.rl.monitor import MONITOR_FILE
    from stepmark.training.state import HISTORY_FILE

    ended = any((out / name).is_file() for name in _LAST)
    missing = [name for name in (HISTORY_FILE, MONITOR_FILE, *_LAST) if not (out / name).is_file()]
    if ended and missing and not (out / STATE_FILE).is_file():
        raise UsageError(
            f"`out` {out} is of this run, which has ended, and lacks {', '.join(missing)} now; put it back, or take another folder"
        )
    return not missing


def _result(out: Path, record: Mapping[str, Any], summary: str) -> TrainedPolicy:
    from stepmark.rl.monitor import BEST, MONITOR_FILE, read_watched
    from stepmark.training.state import HISTORY_FILE, read_lines

    return TrainedPolicy(
        out=out,
        best=out / BEST if (out / BEST).is_dir() else None,
        evaluations=tuple(read_watched(out / MONITOR_FILE)),
        updates=tuple(read_lines(out / HISTORY_FILE)),
        manifest=record,
        summary=summary,
    )


def _drop_drafts(out: Path) -> None:
    """Remove what a killed run left half done."""
    from stepmark.rl.monitor import BEST

    for file in [*out.iterdir(), *(out / BEST).glob("*")]:
        if _is_draft(file):
            shutil.rmtree(file) if file.is_dir() else file.unlink()


def _is_draft(file: Path) -> bool:
    """Whether a file or folder is still being written; it takes its name when it is whole."""
    return file.suffix in (".part", ".old") or (file.name.startswith(".") and file.suffix == ".tmp")


def _flat(record: Mapping[str, Any], at: str = "") -> dict[str, object]:
    """Settings by their names, such as `settings.seed`, without those that are None."""
    settings: dict[str, object] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            settings |= _flat(value, f"{at}{name}.")
        elif value is not None and name != "command":
            settings[f"{at}{name}"] = value
    return settings


def _identity(place: str) -> str:
    """A checkpoint by its name and the digest of its files."""
    return named(place, checkpoint_fingerprint(find_checkpoint(place)))
