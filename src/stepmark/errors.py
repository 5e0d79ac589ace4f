"""The errors of stepmark, one tree.

::

    StepmarkError
      x InputError            the data is wrong: says file, line, field, what was expected and found
        + MarkerInTextError   a PRM's marker or control token stands inside a problem or a step
        + TooLongError        a solution has more tokens than the model reads
      x UsageError            a setting or a name is wrong
        + SettingError        a value that a setting does not take
        + UnknownNameError    no such PRM, family, aggregate, way to split; names the nearest
        + ScoreKindError      an operation that has no meaning for this kind of score
      x CheckpointError       a model is missing, corrupt, or not what it says
        + UnknownFamilyError  a checkpoint whose PRM family cannot be told
      x BackendError          a server or a worker failed; no score was made
        + UnreachableError    nothing answers at a server's address
      x StorageError          the system could not write or read a file: a full disk, a permission
      x MissingExtraError     an optional dependency is not installed; says the line to type

To add one: subclass the branch that says who must act. The command line exits with 2 for `InputError`,
`UsageError` and `CheckpointError` (the caller must change something) and with 1 for the others.
"""

from __future__ import annotations


class StepmarkError(Exception):
    """Base of every error that stepmark raises on purpose.

    `exit_code` is what the command line ends with.
    """

    exit_code = 1


class InputError(StepmarkError, ValueError):
    """Data that cannot be used.

    The message says what was expected, what was found, and what to do. `where` is `FILE:LINE` (or the
    solution's id) when known, `field` the offending field.
    """

    exit_code = 2

    def __init__(self, message: str, *, where: str | None = None, field: str | None = None) -> None:
        self.message = message
        self.where = where
        self.field = field
        place = ", ".join(part for part in (where, f"field {field!r}" if field else None) if part)
        super().__init__(f"{place}: {message}" if place else message)

    def at(self, where: str) -> InputError:
        """The same error with its place filled in (kept if it already has one)."""
        if self.where is not None:
            return self
        return type(self)(self.message, where=where, field=self.field)

    def in_row(self, where: str) -> InputError:
        """The same error at a row's FILE:LINE, with what it knew of its place (at most the solution's id) in brackets behind it."""
        place = where if self.where in (None, where) else f"{where} ({self.where})"
        return type(self)(self.message, where=place, field=self.field)


class MarkerInTextError(InputError):
    """A PRM's marker or control token inside a problem or a step: it would be read as structure."""


class TooLongError(InputError):
    """A solution has more tokens than the model can read."""


class UsageError(StepmarkError, ValueError):
    """A setting that cannot work."""

    exit_code = 2


class SettingError(UsageError):
    """A setting whose value is not one of those that it takes.

    `setting` is its name, `value` what was given, `expected` the values that it takes, in words. The command line prints the same with
    the flag's name.
    """

    def __init__(self, setting: str, value: object, expected: str) -> None:
        self.setting = setting
        self.value = value
        self.expected = expected
        super().__init__(f"{setting}={value!r}: expected {expected}")


class UnknownNameError(UsageError):
    """A name that the registry does not have."""


class ScoreKindError(UsageError):
    """An operation that is meaningless for this kind of score, such as a product of log-ratios."""


class CheckpointError(StepmarkError):
    """A checkpoint that is missing, corrupt, or does not hold what its config says."""

    exit_code = 2


class UnknownFamilyError(CheckpointError):
    """A checkpoint whose PRM family cannot be told from its config, weights or name."""


class BackendError(StepmarkError):
    """A server or worker failed or answered nonsense; no score was made from it."""


class UnreachableError(BackendError):
    """Nothing answers at a server's address, and nothing has answered there before."""


class IdleSettingWarning(UserWarning):
    """A setting that has no effect here, and why. The run goes on without it."""


class StorageError(StepmarkError):
    """The system could not write or read a file, as when the disk is full; the message names the file and says what to do."""


class MissingExtraError(StepmarkError, ImportError):
    """An optional dependency is missing; the message holds the line that installs it."""

    exit_code = 2


def told(error: BaseException) -> str:
    """An error of code that is not stepmark's, in one line: its type, its message, and the file and line that raised it.

    Args:
        error: as it was caught. The line is the innermost one that is neither stepmark's nor Python's own; where there is none, it is
            left out.
    """
    place = raised_at(error)
    message = " ".join(str(error).split())
    return f"{type(error).__name__}{': ' if message else ''}{message}" + (f", at {place}" if place else "")


def raised_at(error: BaseException, *, ours: bool = False) -> str | None:
    """Where an error was raised, as "FILE:LINE": the innermost line that is neither stepmark's nor Python's own; None where there is none.

    Args:
        error: as it was caught.
        ours: a line of stepmark's is meant too.
    """
    import sysconfig
    import traceback
    from pathlib import Path

    if isinstance(error, SyntaxError) and error.filename:
        return f"{_from_here(error.filename)}:{error.lineno}"
    # What dataclasses write has no file ("<string>"), what is frozen into Python none either.
    frames = [item for item in traceback.extract_tb(error.__traceback__) if not item.filename.startswith("<")]
    paths = sysconfig.get_paths()
    installed = (paths["purelib"], paths["platlib"])  # which may lie below Python's own folder
    pythons = (paths["stdlib"], paths["platstdlib"])

    def meant(file: Path) -> bool:
        if file.is_relative_to(Path(__file__).parent):
            return ours
        return any(map(file.is_relative_to, installed)) or not any(map(file.is_relative_to, pythons))

    results = [frame for frame in frames if meant(Path(frame.filename))]
    return f"{_from_here(results[-1].filename)}:{results[-1].lineno}" if results else None


def _from_here(file: str) -> str:
    """A path as seen from the working folder, where it lies below it."""
    from pathlib import Path

    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
