"""One run of `stepmark rl`: what it was asked, whether that can be, whether it is done, whether it may go on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepmark.cli.rl_flags import ImplicitFlags, RunFlags
from stepmark.errors import MissingExtraError, UsageError
from stepmark.models.identity import checkpoint_fingerprint, named
from stepmark.models.places import find_checkpoint
from stepmark.rl.settings import RL
from stepmark.store import LOCK_FILE, atomic_write, differences, fingerprint

if TYPE_CHECKING:
    from stepmark.rl.credit.methods import Credit
    from stepmark.rl.online import Implicit
    from stepmark.rl.refitted import Refitting
    from stepmark.rl.watched import Watch

RUN_FILE, STATE_FILE, REPORT_FILE = "run.json", "state.pt", "report.html"
_LAST = ("config.json", REPORT_FILE, "README.md")
"""What a run writes when it has ended, the card last."""
_NO_RESULTS = ("save_every", "token_budget")
"""Settings that change no result; a run may be continued with others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What the command was asked for."""

    file: str
    """Of problems."""
    policy: str
    name: str
    """The credit method's."""
    credit: Credit
    out: Path
    run: RunFlags
    settings: RL
    implicit: ImplicitFlags
    online: Implicit | None
    """The implicit PRM's settings; None without one."""
    watch: Watch
    refit: Refitting | None = None
    """How the PRM is fitted anew; None when it is not."""

    @property
    def dtype(self) -> str:
        """Of the policy: small updates vanish in bfloat16, unless adapters in float32 take them."""
        return "float32" if self.run.dtype == "auto" and self.settings.rank is None else self.run.dtype

    def record(self) -> dict[str, Any]:
        """All that decides the result, as plain data; models by their files, so that none is exchanged unnoticed.

        Raises:
            StepmarkError: a model is not there.
        """
        from stepmark.models.load import prm_identity

        run, online = self.run, self.online
        implicit = None
        if online is not None:
            model = self.implicit.implicit_model
            implicit = {"model": None if model is None else _identity(model), **asdict(online)}
            implicit.pop("token_budget")
        body = {
            "command": "rl",
            "problems": _named(self.file),
            "held_out": int(run.held_out) if run.held_out.isdigit() else _named(run.held_out),
            "policy": _identity(self.policy),
            "prm": None if run.prm is None else prm_identity(run.prm, prm_settings(run)),
            "family": run.family,
            "verifier": run.verifier,
            "percent": run.percent,
            "dtype": run.dtype,
            "reference": not run.no_reference,
            "credit": {"name": self.name, **asdict(self.credit)},  # type: ignore[call-overload]
            "implicit": implicit,
            "refit": None if self.refit is None else asdict(self.refit),
            "settings": {
                key: value for key, value in asdict(self.settings).items() if key not in _NO_RESULTS
            },
            "watch": asdict(self.watch),
        }
        plain: dict[str, Any] = json.loads(json.dumps(body))
        return plain


def check(asked: Asked) -> None:
    """Refuse what cannot work before anything is loaded.

    Raises:
        UsageError: flags that contradict each other, that lack another one, or that mean nothing beside the others.
    """
    from stepmark.rl.credit.methods import CREDITS
    from stepmark.solutions.segmentation import split

    usual = RL()
    policy, name, run, settings, online = asked.policy, asked.name, asked.run, asked.settings, asked.online
    split("1", settings.split)
    if asked.out.exists() and not asked.out.is_dir():
        raise UsageError(f"--out {asked.out}: expected a folder's name, found a file")
    if run.device != "auto":
        from stepmark.rl.actor import check_device

        check_device(run.device)
    if policy.startswith(("http://", "https://")):
        raise UsageError(
            f"--policy {policy}: a server's weights cannot be trained here; give a folder or a hub name"
        )
    needs = asked.credit.needs
    if needs.steps and run.prm is None:
        raise UsageError(
            f"--credit {name} needs a PRM: add --prm default, a checkpoint's folder or hub name, a server's address, or package.module:factory"
        )
    if needs.tokens and online is None:
        raise UsageError(
            f"--credit {name} needs an implicit PRM: add --implicit, which starts one from the policy's weights"
        )
    if online is not None and not needs.tokens:
        raise UsageError(f"--implicit rewards tokens, and --credit {name} reads none; take --credit prime")
    if settings.group < 2 and name in CREDITS and not needs.values:
        raise UsageError(
            f"--group {settings.group}: --credit {name} compares solutions of one problem with each other; expected 2 or more"
        )
    if settings.keep_consistent is not None and run.prm is None:
        raise UsageError("--keep-consistent needs a PRM, to tell what is consistent: add --prm")
    if settings.kl != usual.kl and settings.kl_weight == 0:
        raise UsageError(f"--kl {settings.kl} does nothing without its weight: add --kl-weight")
    if settings.value_weight != usual.value_weight and not needs.values:
        raise UsageError(
            f"--value-weight is of a critic, and --credit {name} has none; take --credit ppo or step-ppo"
        )
    if run.dtype == "bfloat16" and settings.rank is None:
        raise UsageError(
            "--dtype bfloat16: small updates of all weights vanish in it; leave it out, or train adapters with --rank"
        )
    if settings.kl_weight > 0 and run.no_reference:
        raise UsageError("--kl-weight needs the starting policy, which --no-reference does not keep")
    if run.prm is None:
        for flag, given in (
            ("--stop-on-hack", run.stop_on_hack),
            ("--family", run.family is not None),
            ("--tokenizer", run.tokenizer is not None),
            ("--aggregate", run.aggregate is not None),
            ("--refit-every", asked.refit is not None),
            ("--slack", run.slack != RunFlags().slack),
            ("--limit", run.limit != RunFlags().limit),
            # An implicit PRM has a threshold too.
            ("--error-under", run.error_under is not None and online is None),
        ):
            if given:
                raise UsageError(f"{flag} needs a PRM: add --prm")
    if asked.refit is not None and run.tokenizer is not None:
        raise UsageError(
            "--refit-every: the weights of a PRM behind a server cannot be trained here; name its folder with --prm"
        )


def installed() -> None:
    """Refuse at once, and not after hours of training, what lacks a package.

    Raises:
        MissingExtraError: matplotlib, torch or transformers.
    """
    if find_spec("matplotlib") is None:
        raise MissingExtraError('the run\'s page needs matplotlib: pip install "stepmark[evaluate]"')
    if find_spec("torch") is None or find_spec("transformers") is None:
        raise MissingExtraError("training needs torch and transformers: pip install 'stepmark[train]'")


def is_done(out: Path, run_record: Mapping[str, Any]) -> bool:
    """Whether this very run is finished there, with all of its files.

    Args:
        out: the folder, held.
        run_record: what the run is.

    Raises:
        UsageError: OUT holds something else, a run with other settings or models, or a finished run of which files are gone.
    """
    record = out / RUN_FILE
    if not record.is_file():
        others = [one.name for one in out.iterdir() if one.name != LOCK_FILE and not _is_draft(one)]
        if others:
            raise UsageError(
                f"--out {out}: expected a new folder or that of a run, found {sorted(others)[0]} in it"
            )
        return False
    changed = differences(json.loads(record.read_text(encoding="utf-8")), run_record)
    if changed:
        raise UsageError(
            f"--out {out} is of a run that was made otherwise: {'; '.join(changed)}. Run with the same settings and models to continue it, or take "
            "another folder"
        )
    from stepmark.rl.monitor import HISTORY_FILE, MONITOR_FILE

    ended = any((out / name).is_file() for name in _LAST)
    missing = [name for name in (HISTORY_FILE, MONITOR_FILE, *_LAST) if not (out / name).is_file()]
    if ended and missing and not (out / STATE_FILE).is_file():
        raise UsageError(
            f"--out {out} is of this run, which has ended, and lacks {', '.join(missing)} now; put it back, or take another folder"
        )
    return not missing


def begin(out: Path, run_record: Mapping[str, Any]) -> None:
    """Say in the folder of a run what it is, and remove what a killed run left half done.

    Args:
        out: the folder, held.
        run_record: what the run is.
    """
    drop_drafts(out)
    if not (out / RUN_FILE).is_file():
        with atomic_write(out / RUN_FILE) as handle:
            json.dump(run_record, handle, ensure_ascii=False, indent=2)
            handle.write("\n")


def drop_drafts(out: Path) -> None:
    """Remove what a killed run left half done.

    Args:
        out: the folder, held.
    """
    from stepmark.rl.monitor import BEST

    for one in [*out.iterdir(), *(out / BEST).glob("*")]:
        if _is_draft(one):
            shutil.rmtree(one) if one.is_dir() else one.unlink()


def _is_draft(file: Path) -> bool:
    """Whether a file or folder is one that is being written; it takes its name when it is whole."""
    return file.suffix in (".part", ".old") or (file.name.startswith(".") and file.suffix == ".tmp")


def prm_settings(run: RunFlags) -> dict[str, Any]:
    """How the PRM is loaded: the settings of `load_prm`."""
    from stepmark.models.named import read_by

    assert run.prm is not None
    # The policy computes here in any case; a PRM behind a server has no device here.
    return {"family": run.family, "tokenizer": run.tokenizer, **read_by(run.prm, {"device": run.device})}


def flat(run_record: Mapping[str, Any], at: str = "") -> dict[str, object]:
    """Settings by their names, such as `settings.seed`; those that are not set are left out."""
    found: dict[str, object] = {}
    for name, value in run_record.items():
        if isinstance(value, dict):
            found |= flat(value, f"{at}{name}.")
        elif value is not None and name != "command":
            found[f"{at}{name}"] = value
    return found


def _identity(place: str) -> str:
    """A checkpoint by its name and the digest of its files."""
    return named(place, checkpoint_fingerprint(find_checkpoint(place)))


def _named(file: str) -> dict[str, Any]:
    known = fingerprint(file)
    return {"name": Path(file).name, "sha256": None if known is None else known.sha256}
