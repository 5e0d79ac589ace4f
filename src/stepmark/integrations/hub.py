"""Publishing a trained PRM on the Hugging Face hub.

Only files that belong to a checkpoint are uploaded, by name; whatever else lies in the folder (a run's state, optimizer, logs) stays. The
token is huggingface_hub's own (`hf auth login`, or HF_TOKEN); stepmark neither takes nor stores one.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from stepmark.errors import BackendError, MissingExtraError, UsageError
from stepmark.settings import checked

_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FILES = re.compile(
    r"README\.md|LICENSE(\.\w+)?|NOTICE(\.\w+)?"
    r"|(config|generation_config|stepmark|calibration|train|adapter_config)\.json"
    r"|model(-\d+-of-\d+)?\.safetensors|model\.safetensors\.index\.json|adapter_model\.safetensors"
    r"|(tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab)\.json|merges\.txt|vocab\.txt"
    r"|(tokenizer|sentencepiece(\.bpe)?|spiece)\.model|chat_template\.(jinja|json)"
)


@checked
def publish(
    folder: str | Path, repo: str, *, private: bool = False, message: str | None = None, dry_run: bool = False
) -> tuple[dict[str, int], str | None]:
    """Publish a checkpoint with its card on the Hugging Face hub, in one commit.

    The checkpoint is loaded first, and its card (README.md) must be there: `stepmark train` writes it, and you add the licence.

    Args:
        folder: the checkpoint, whole or an adapter, as `stepmark train` writes it.
        repo: OWNER/NAME; made if it does not exist.
        private: make the repository private.
        message: message of the commit.
        dry_run: check only, and send nothing.

    Returns:
        The files with their sizes in bytes, and the address of the commit; None with `dry_run`.

    Raises:
        UsageError: no such folder, a name that no repository can have, no card, a base that is on no hub, or no token.
        CheckpointError: the checkpoint cannot be loaded.
        BackendError: the hub refused or failed.
        MissingExtraError: huggingface_hub is not installed.
    """
    path = Path(folder).expanduser()
    files = _checked_files(path, repo)
    if dry_run:
        return files, None
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import LocalTokenNotFoundError
    except ImportError as error:
        raise MissingExtraError("publishing needs huggingface_hub: pip install 'stepmark[hub]'") from error
    hub = HfApi()
    try:
        hub.whoami()
        if private and hub.repo_exists(repo) and not hub.model_info(repo).private:
            raise UsageError(f"{repo} exists and is public: make it private on the hub first")
        hub.create_repo(repo, private=private or None, exist_ok=True)
        commit = hub.upload_folder(
            repo_id=repo,
            folder_path=str(path),
            allow_patterns=list(files),
            commit_message=message or "Upload a process reward model with stepmark",
        )
    except LocalTokenNotFoundError as error:
        raise UsageError(
            "the hub needs a token that may write: run `hf auth login`, or set HF_TOKEN"
        ) from error
    except UsageError:
        raise
    except Exception as error:  # of the hub, and of whichever HTTP library its client has in this version
        raise BackendError(f"the upload to {repo} failed: {error}; run the same command again") from error
    return files, str(commit.commit_url)


def _checked_files(path: Path, repo: str) -> dict[str, int]:
    from stepmark.models.load import load_prm

    if not _REPO.fullmatch(repo):
        raise UsageError(f"expected the repository as OWNER/NAME, found {repo!r}")
    if not path.is_dir():
        raise UsageError(f"there is no folder {str(path)!r}: expected a checkpoint of `stepmark train`")
    files = {item.name: item.stat().st_size for item in sorted(path.iterdir()) if _FILES.fullmatch(item.name)}
    if "README.md" not in files:
        raise UsageError(f"{path} has no README.md: the hub shows it as the model's card")
    if "adapter_config.json" in files:
        base: Any = json.loads((path / "adapter_config.json").read_text("utf-8")).get(
            "base_model_name_or_path"
        )
        if not isinstance(base, str) or not (base.startswith("stepmark:") or _REPO.fullmatch(base)):
            raise UsageError(
                f"{path}/adapter_config.json: the base {base!r} is no hub name, so nobody else could load the adapter; "
                "publish the merged checkpoint, or write the base's hub name there"
            )
    load_prm(str(path), device="cpu")
    return files
