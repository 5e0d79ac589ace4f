"""Publishing a checkpoint on the Hugging Face hub: what is uploaded, what must be true before it is, and the upload.

Only files that belong to a checkpoint are uploaded, by name; whatever else lies in the folder (a run's state, optimizer, logs) is left and
listed. The token is huggingface_hub's own (`hf auth login`, or HF_TOKEN); stepmark neither takes nor stores one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepmark.errors import BackendError, CheckpointError, MissingExtraError, StepmarkError, UsageError
from stepmark.models.spec import SPEC_FILE
from stepmark.settings import checked

CARD = "README.md"
_ADAPTER = "adapter_config.json"
_INDEX = "model.safetensors.index.json"
_TRAINED = "train.json"
_BELONGS = re.compile(
    r"README\.md|LICENSE(\.\w+)?|NOTICE(\.\w+)?|\.gitattributes"
    r"|(config|generation_config|stepmark|calibration|train|adapter_config)\.json"
    r"|model(-\d+-of-\d+)?\.safetensors|model\.safetensors\.index\.json|adapter_model\.safetensors"
    r"|(tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab)\.json|merges\.txt|vocab\.txt"
    r"|(tokenizer|sentencepiece(\.bpe)?|spiece)\.model|chat_template\.(jinja|json)"
)
_LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]*")
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_EXAMPLE = ("What is 2 + 3 * 4?", ["3 * 4 = 12", "2 + 12 = 14"])


@checked
def publish(
    folder: str | Path,
    repo: str,
    *,
    private: bool = False,
    message: str | None = None,
    incomplete_card: bool = False,
    no_load: bool = False,
    dry_run: bool = False,
    on_plan: Callable[[Plan], None] | None = None,
) -> Published | None:
    """Publish a checkpoint with its card on the Hugging Face hub.

    First it is checked: the files of a whole checkpoint are there, stepmark reads it and scores with it, and its card names licence, base,
    data and figures. Then the files that belong to a checkpoint are uploaded in one commit; states, optimizers and logs are not. The token
    is that of `hf auth login`, or HF_TOKEN.

    Args:
        folder: the checkpoint, whole or an adapter, as `stepmark train` writes it.
        repo: OWNER/NAME; made if it does not exist.
        private: make the repository private.
        message: message of the commit.
        incomplete_card: publish though the card lacks something.
        no_load: do not read the checkpoint, which takes the memory of the whole model.
        dry_run: check only, and send nothing.
        on_plan: called with what would be uploaded, before anything is sent.

    Returns:
        The commit; None with `dry_run`.

    Raises:
        UsageError: the checkpoint is not ready to be published, no token, or the repository is public and shall be private.
        BackendError: the hub refused or failed.
        MissingExtraError: huggingface_hub is not installed.
    """
    planned = plan(folder, repo, incomplete_card=incomplete_card, load=not no_load)
    if on_plan is not None:
        on_plan(planned)
    if planned.problems:
        raise UsageError(refusal(planned))
    return None if dry_run else upload(planned, private=private, message=message)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What would be published, and what stands in the way."""

    folder: Path
    repo: str
    upload: Mapping[str, int]
    """The files, and their sizes in bytes."""
    left: tuple[str, ...]
    """What lies in the folder and is not uploaded; folders end in "/"."""
    problems: tuple[str, ...]
    """What must be put right first; each says how."""
    notes: tuple[str, ...]
    """What the publisher should know."""

    @property
    def size(self) -> int:
        """Bytes that are uploaded."""
        return sum(self.upload.values())


def plan(folder: str | Path, repo: str, *, incomplete_card: bool = False, load: bool = True) -> Plan:
    """Look at a checkpoint's folder as it would be published. Nothing is sent, nothing changed.

    Args:
        folder: of the checkpoint, as `stepmark train` writes it.
        repo: OWNER/NAME on the hub.
        incomplete_card: what the card lacks is a note and no problem.
        load: read the checkpoint and score a small solution with it, which takes the memory of the whole model.

    Raises:
        UsageError: a name that no repository can have; no such folder.
    """
    if not _REPO.fullmatch(repo) or ".." in repo or "--" in repo or repo.endswith(".git"):
        raise UsageError(f"expected the repository as OWNER/NAME, found {repo!r}")
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise UsageError(
            f"there is no folder {str(folder)!r}; expected a checkpoint, as `stepmark train` writes it"
        )
    every = sorted(path.iterdir())
    upload = {
        item.name: item.stat().st_size for item in every if item.is_file() and _BELONGS.fullmatch(item.name)
    }
    names = set(upload)
    problems = _missing(path, names)
    notes: list[str] = []
    lacks = _card_lacks(path) if CARD in names else []
    (notes if incomplete_card else problems).extend(lacks)
    notes += _private(path, names)
    if load and not problems:
        problems += _unreadable(path)
    elif not load:
        notes.append("whether the checkpoint can be read was not tried")
    return Plan(
        folder=path,
        repo=repo,
        upload=upload,
        left=tuple(item.name + "/" * item.is_dir() for item in every if item.name not in names),
        problems=tuple(problems),
        notes=tuple(notes),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """What was uploaded."""

    commit: str
    """Its address."""
    strays: tuple[str, ...]
    """Files of the repository that belong to a checkpoint and not to this one, such as parts of an earlier upload; a reader may take them
    for this one's."""


def upload(planned: Plan, *, private: bool = False, message: str | None = None, hub: Any = None) -> Published:
    """Upload what was planned, in one commit.

    Args:
        planned: without problems.
        private: make the repository private; one that exists must be.
        message: message of the commit.
        hub: a `huggingface_hub.HfApi`; None for a new one, with the user's token.

    Raises:
        UsageError: the plan has problems, no token, or the repository is public and shall be private.
        BackendError: the hub refused or failed; or a file did not arrive.
        MissingExtraError: huggingface_hub is not installed.
    """
    if planned.problems:
        raise UsageError(refusal(planned))
    api = hub or _hub()
    repo, names = planned.repo, list(planned.upload)
    try:
        api.whoami()
        if private and api.repo_exists(repo) and not api.model_info(repo).private:
            raise UsageError(
                f"{repo} exists and is public; make it private on the hub first, or leave `private` out"
            )
        api.create_repo(repo, private=private or None, exist_ok=True)
        done = api.upload_folder(
            repo_id=repo,
            folder_path=str(planned.folder),
            allow_patterns=names,
            commit_message=message or "Upload a process reward model with stepmark",
        )
        there = set(api.list_repo_files(repo))
    except StepmarkError:
        raise
    except Exception as error:  # of every kind: HTTP, network, validation, a missing token
        raise _hub_error(error, repo) from error
    if absent := sorted(set(names) - there):
        raise BackendError(
            f"{repo}: the upload ended, and the hub does not have {', '.join(absent)}; publish again"
        )
    strays = sorted(there - set(names) - {".gitattributes"})
    return Published(commit=str(done.commit_url), strays=tuple(filter(_BELONGS.fullmatch, strays)))


def refusal(planned: Plan) -> str:
    """Why a plan cannot be carried out, for people."""
    lines = [f"- {problem}" for problem in planned.problems]
    if all(problem.startswith(CARD) for problem in planned.problems):
        lines.append("Edit the card, or publish it as it is with `incomplete_card`.")
    return "\n".join([f"{planned.folder} is not ready to be published:", *lines])


def _hub() -> Any:
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise MissingExtraError("publishing needs huggingface_hub: pip install 'stepmark[hub]'") from error
    return HfApi()


def _hub_error(error: Exception, repo: str) -> StepmarkError:
    kind = type(error).__name__
    text = str(error).strip().splitlines()
    said = f"{kind}: {text[0] if text else 'no message'}"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if kind == "LocalTokenNotFoundError" or status == 401:
        return UsageError(
            f"the hub takes no upload without a token that may write: `hf auth login`, or set HF_TOKEN ({said})"
        )
    if status == 403:
        return UsageError(f"this token may not write to {repo}: it needs the right to write there ({said})")
    return BackendError(
        f"the hub did not take {repo} ({said}); nothing more was sent, and the same command tries again"
    )


def _missing(path: Path, names: set[str]) -> list[str]:
    problems = []
    if CARD not in names:
        problems.append(
            f"there is no {CARD}: the card is what tells others the licence, base, data and figures"
        )
    if SPEC_FILE not in names:
        problems.append(
            f"there is no {SPEC_FILE}, which says how the checkpoint is read; `stepmark train` writes it"
        )
    if _ADAPTER in names:
        if "adapter_model.safetensors" not in names:
            problems.append("the adapter has no adapter_model.safetensors")
        base = _json(path / _ADAPTER).get("base_model_name_or_path")
        if not isinstance(base, str) or not (base.startswith("stepmark:") or _REPO.fullmatch(base)):
            problems.append(
                f"{_ADAPTER}: the base {base!r} is no hub name, so nobody else could load the adapter; publish the whole checkpoint "
                "(train without `adapter`), or put the base's hub name there"
            )
        return problems
    if "config.json" not in names:
        problems.append(
            "there is neither config.json nor adapter_config.json: this is no checkpoint's folder"
        )
    if _INDEX in names:
        shards = set(map(str, _json(path / _INDEX).get("weight_map", {}).values()))
        if not shards or (absent := sorted(shards - names)):
            problems.append(
                f"{_INDEX} names weights that are not there: {', '.join(absent) if shards else 'none at all'}"
            )
    elif "model.safetensors" not in names:
        problems.append("there are no weights: neither model.safetensors nor an index of its parts")
    if not names & {"tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt"}:
        problems.append("there is no tokenizer")
    return problems


def _json(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError):
        return {}
    return data if isinstance(data, dict) else {}


def _card_lacks(path: Path) -> list[str]:
    """What of licence, base, data and figures the card does not say."""
    text = (path / CARD).read_text(encoding="utf-8", errors="replace")
    head = re.match(r"---\n(.*?)\n---\n", text, re.S)
    if head is None:
        return [f"{CARD} has no head (lines between ---): the hub reads licence and base from it"]
    lacks = []
    licence = _field(head[1], "license")
    if licence is None or not _LICENCE.fullmatch(licence):
        lacks.append(
            f"{CARD} names no licence: put `license: apache-2.0` (a hub identifier) into its head, as the licences of base and data allow"
        )
    elif licence == "other" and _field(head[1], "license_name") is None:
        lacks.append(f"{CARD}: `license: other` needs `license_name:` and `license_link:` beside it")
    # A base that comes with stepmark is on no hub: nothing can be named there.
    base = _json(path / _ADAPTER).get("base_model_name_or_path") or _json(path / _TRAINED).get("base")
    if _field(head[1], "base_model", lists=True) is None and not str(base).startswith("stepmark:"):
        lacks.append(f"{CARD} names no base: put `base_model: OWNER/NAME` into its head")
    for title, nothing in (("Data", "Not stated."), ("Measured", "Nothing was measured.")):
        section = re.search(rf"^## {title}[^\n]*\n(.*?)(?=^## |\Z)", text[head.end() :], re.M | re.S)
        if section is None or not section[1].strip() or section[1].strip().startswith(nothing):
            lacks.append(
                f"{CARD} has nothing under `## {title}`: say what it was {'trained on' if title == 'Data' else 'measured on, and the figures'}"
            )
    return lacks


def _field(head: str, name: str, *, lists: bool = False) -> str | None:
    """A field of the card's head; of a list its first entry."""
    match = re.search(rf"^{name}:[ \t]*([^\n]*)(\n[ \t]*-[ \t]+([^\n]+))?", head, re.M)
    if match is None:
        return None
    value = match[1] or (match[3] if lists and match[3] else "")
    return value.strip().strip("\"'") or None


_ABSOLUTE = re.compile(
    r'(?<![\w.:/])(/(?:home|root|Users|mnt|data|tmp|work|scratch|workspace)/[^\s"\'`,)]+|[A-Z]:\\\\[^\s"\']+)'
)


def _private(path: Path, names: set[str]) -> list[str]:
    """Names of this machine's folders in what would be published."""
    notes = []
    for name in sorted(
        names & {CARD, _TRAINED, "stepmark.json", "config.json", _ADAPTER, "calibration.json"}
    ):
        match = _ABSOLUTE.search((path / name).read_text(encoding="utf-8", errors="replace"))
        if match is not None:
            notes.append(f"{name} names a folder of this machine: {match[1]}")
    return notes


def _unreadable(path: Path) -> Sequence[str]:
    from stepmark.models.load import load_prm  # only where a model is wanted

    try:
        prm = load_prm(str(path), device="cpu")
        scores = prm.score(_EXAMPLE[0], steps=_EXAMPLE[1])
    except (CheckpointError, UsageError, BackendError) as error:
        return [f"stepmark cannot read it: {error}"]
    if any(score is not None and not math.isfinite(score) for score in scores):
        return [f"it scores {scores} for a solution of two steps: these are no numbers"]
    return []
