"""The command line: a table of commands, each imported only when it is asked for, so that `--help` stays quick."""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from stepmark import __version__
from stepmark.cli.help_examples import shown
from stepmark.errors import IdleSettingWarning, SettingError, StepmarkError, UsageError, raised_at
from stepmark.registry import unknown_name

if TYPE_CHECKING:
    from cyclopts import App, CycloptsError

COMMANDS: dict[str, tuple[str, str]] = {
    "problems": ("stepmark.cli.problems:app", "Make problems with known truth, or read others' files."),
    "sample": ("stepmark.cli.sample:sample_command", "Sample solutions of problems from a policy."),
    "grade": ("stepmark.cli.grade:grade_command", "Grade solutions step by step with a PRM."),
    "watch": (
        "stepmark.cli.watch:watch_command",
        "Score an agent's turns while it works, or answer its hook.",
    ),
    "split": ("stepmark.cli.split:split_command", "Cut solutions into steps."),
    "families": ("stepmark.cli.families:families_command", "List the PRM families that stepmark can read."),
    "evaluate": ("stepmark.cli.evaluate:app", "Measure what a PRM is good for, with intervals."),
    "search": ("stepmark.cli.search:app", "Search for solutions with a policy and a PRM."),
    "label": ("stepmark.cli.label:app", "Label the steps of solutions automatically."),
    "convert": (
        "stepmark.cli.convert:convert_command",
        "Convert labelled solutions from one format to another.",
    ),
    "annotate": ("stepmark.cli.annotate:app", "Serve a web app where people label steps."),
    "serve": ("stepmark.cli.serve:serve_command", "Serve a PRM over HTTP for many clients."),
    "train": ("stepmark.cli.train:train_command", "Train a PRM on step-labelled solutions."),
    "publish": (
        "stepmark.cli.publish:publish_command",
        "Publish a checkpoint with its card on the Hugging Face hub.",
    ),
    "rl": ("stepmark.cli.rl:rl_command", "Train a policy with process rewards, watched for reward hacking."),
    "doctor": (
        "stepmark.cli.doctor:doctor_command",
        "Show what is installed, what is missing and how to install it.",
    ),
}
"""Name: where the command lives, and its line in `stepmark --help`."""

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT, as shells have it."""

CLOSED_PIPE = 141
"""Exit code when the reader of our output went away: 128 + SIGPIPE."""

_FLAGS = {"settings": "--set", "method_settings": "--set", "from_format": "--from"}
"""Flags that are not named like their setting."""
_options: set[str] = set()
"""The options of the command that runs; empty until they are known."""
_CONFIG = "Every command takes --config FILE.toml: its keys are the command's flags, and flags override them."
_PRINTED = "standard output"
_NO_BARS = ("TQDM_DISABLE", "HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS")
"""Read by libraries when they are imported."""
_UNNAMED = "standard output, or a file that the system does not name"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and give its exit code.

    0: done. 1: something failed that the caller did not cause. 2: the caller must change something: a file,
    a setting, a model. 130: interrupted. `stepmark watch` gives 1 in the place of 2.

    Errors are messages on standard error, never tracebacks; `STEPMARK_DEBUG=1` shows where they come from.

    Args:
        argv: the words after `stepmark`; None for this process's own.
    """
    tokens = list(sys.argv[1:] if argv is None else argv)
    code = _main(tokens)
    # Agents read 2 from a hook as an order to block; --hook itself may be what is mistyped.
    is_hook = tokens[:1] == ["watch"] or "--hook" in tokens
    return 1 if code == 2 and is_hook else code


def _main(tokens: list[str]) -> int:
    if sys.stdout is None:
        if sys.stderr is not None:
            print(
                "error: standard output is closed: send it somewhere, > FILE or > /dev/null", file=sys.stderr
            )
        return 2
    _prepare_streams()
    _options.clear()
    debug = os.environ.get("STEPMARK_DEBUG", "") not in ("", "0")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default", IdleSettingWarning)
            warnings.showwarning = _note
            code = _run(tokens)
        _flush()
        return code
    except StepmarkError as error:
        _complain(error, debug)
        return error.exit_code
    except KeyboardInterrupt as error:
        print(f"\ninterrupted{': ' if error.args else ''}{error}", file=sys.stderr)
        if any(thread.name == "stepmark-batch" for thread in threading.enumerate()):
            # A model computes on in its thread, and Python would wait for it.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return CLOSED_PIPE
    except (
        Exception
    ) as error:  # of a disk, of a class or function that the caller named, or a mistake of ours
        if (refused := _refused(error)) is not None:
            _complain(error if debug else refused, debug)
            return 1
        place = raised_at(error, ours=True)
        error.add_note(
            f"raised at {place}; STEPMARK_DEBUG=1 shows how it came there. Where no code of your own is on the way, it is a mistake in "
            "stepmark: please report it"
        )
        _complain(error, debug, kind=type(error).__name__)
        return 1


def _note(message: Warning | str, *_: object, **__: object) -> None:
    print(f"note: {_as_typed(str(message))}", file=sys.stderr)


def print_note(text: str) -> None:
    """Print what a run says of itself on standard error: settings that it names become the command's flags."""
    print(_as_typed(text), file=sys.stderr)


def _as_typed(text: str) -> str:
    """A message with the command's options in the place of the settings that it names in backticks; settings of `--set` stay."""

    def typed(name: re.Match[str]) -> str:
        option = _FLAGS.get(name[1], f"--{name[1].replace('_', '-')}")
        return option if option in _options or not _options else name[0]

    return re.sub(r"`([a-z][a-z_]*)`", typed, text)


def _refused(error: Exception) -> Exception | None:
    """What the system refused, as an error to be shown; None for an error that is not the system's."""
    from stepmark.store import storage_error

    return storage_error(error, _UNNAMED) or (error if isinstance(error, OSError) else None)


def _flush() -> None:
    """Write what is still buffered of standard output."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        from stepmark.store import storage_error

        _drop_output()
        raise storage_error(error, _PRINTED) or error from error


def _drop_output() -> None:
    """Forget what is still buffered: it would raise again when the interpreter closes standard output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _prepare_streams() -> None:
    """Write every message: escaped where the locale has no é, nowhere where standard error is closed; no bars of libraries in a log."""
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - as long as the process lives
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="backslashreplace")
    if not sys.stderr.isatty():
        for switch in _NO_BARS:
            os.environ.setdefault(switch, "1")


def _run(tokens: list[str]) -> int:
    # Here and not by cyclopts, which imports every command to list them.
    own = ("--help", "-h", "--version")
    if tokens and tokens[0] not in (*COMMANDS, *own):
        option = tokens[0].startswith("-")
        raise unknown_name(
            "option" if option else "command", tokens[0], (*own, *COMMANDS) if option else COMMANDS
        )
    from cyclopts import CycloptsError, UnusedCliTokensError

    tokens, config = _without_config(tokens)
    app = _app()
    if {"--help", "-h"} & set(tokens) and (
        known := [word for word in app.parse_commands(tokens)[0] if not word.startswith("-")]
    ):
        _check_subcommand(app, [word for word in tokens if word not in ("--help", "-h")])
        _prepare_help(app)
        app.help_epilogue = f"{shown(known)}\n\n{_CONFIG}"
    if config is not None:
        from cyclopts.config import Toml

        if not Path(config).is_file():
            raise UsageError(f"--config {config}: there is no such file")
        app.config = Toml(config, must_exist=True, use_commands_as_keys=False)
    try:
        _check_whole(app, tokens)
        code = app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        _raise_ours(error)
        message = str(error)
        if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
            _check_subcommand(app, tokens)
            message = f"expected nothing more, found {' '.join(map(repr, error.unused_tokens))}"
        print(f"error: {message}\nSee: {' '.join(_command(app, tokens))} --help", file=sys.stderr)
        return 2
    return code if isinstance(code, int) else 0


def _raise_ours(error: CycloptsError) -> None:
    """Raise the error of ours, or of a value out of its bounds, that cyclopts has wrapped."""
    cause = error.__cause__
    if isinstance(cause, StepmarkError):
        raise cause from None
    if type(cause).__name__ == "ValidationError" and error.argument is not None:
        from pydantic import ValidationError

        from stepmark.settings import setting_error

        if isinstance(cause, ValidationError):
            name = error.argument.name.removeprefix("--").replace("-", "_")
            raise setting_error(cause, name, error.argument.field_info.annotation) from None


def _app() -> App:
    from cyclopts import App, Parameter

    app = App(
        name="stepmark",
        help="Process reward models: grade reasoning step by step.",
        help_epilogue=_CONFIG,
        version=__version__,
        help_format="plaintext",
        default_parameter=Parameter(negative=""),
        suppress_keyboard_interrupt=False,  # `main` says how to go on
    )
    for name, (place, summary) in COMMANDS.items():
        app.command(place, name=name, help=summary)
    return app


def _prepare_help(app: App) -> None:
    from cyclopts import Parameter

    from stepmark.cli.help import PanelFormatter, shown_default

    app.default_parameter = Parameter(negative="", show_default=shown_default)
    app.help_formatter = PanelFormatter()


def _without_config(tokens: list[str]) -> tuple[list[str], str | None]:
    """The words without --config, and the file that it names."""
    rest: list[str] = []
    config: str | None = None
    words = iter(tokens)
    for word in words:
        name, equals, value = word.partition("=")
        if name != "--config":
            rest.append(word)
            continue
        config = value if equals else next(words, "")
        if not config:
            raise UsageError("--config: expected the name of a TOML file")
    return rest, config


def _check_subcommand(app: App, tokens: list[str]) -> None:
    """Refuse a misspelt subcommand of a command that takes a file too, which is read as that file."""
    known, apps, rest = app.parse_commands(tokens)
    names = tuple(name for name in apps[-1] if not name.startswith("-"))
    if names and rest and not rest[0].startswith("-") and not Path(rest[0]).exists():
        raise unknown_name(f"{' '.join(known)} command", rest[0], names)


def _command(app: App, tokens: list[str]) -> list[str]:
    known, _, _ = app.parse_commands(tokens)
    return ["stepmark", *known]


def _check_whole(app: App, tokens: list[str]) -> None:
    """Refuse a fraction where a whole number is meant, which cyclopts would round in silence."""
    _, apps, rest = app.parse_commands(tokens)
    if apps[-1].default_command is None or {"--help", "-h", "--version"} & set(tokens):
        return
    whole: set[str] = set()
    for argument in apps[-1].assemble_argument_collection():
        _options.update(argument.names)
        kinds = {argument.hint, *get_args(argument.hint)}
        if int in kinds and float not in kinds:
            whole.update(argument.names)
    flag = ""
    for token in rest:
        if token.startswith("--"):
            flag, _, value = token.partition("=")
        else:
            value = token
        if flag in whole and re.fullmatch(r"[+-]?(\d+\.\d*|\.\d+)", value) and float(value) % 1:
            raise UsageError(f"{flag} {value}: expected a whole number")


def _complain(error: Exception, debug: bool, *, kind: str | None = None) -> None:
    if debug:
        import traceback

        traceback.print_exception(error)
        return
    notes: list[str] = getattr(error, "__notes__", [])  # as PEP 678 has it: absent until the first note
    message = str(error)
    if isinstance(error, SettingError):
        message = f"`{error.setting}` {error.value}: expected {error.expected}"
    if kind is not None:
        message = f"{kind}: {message}" if message else kind
    print(_as_typed("\n".join([f"error: {message}", *notes])), file=sys.stderr)
