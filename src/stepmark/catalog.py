"""Names of machines, and where they live: `name -> "module:Attribute"`.

A catalog keeps `stepmark --help` light (nothing is imported until it is named) and gives one error for a
typo everywhere. A user's own machine needs no registration: "my_package.module:Class" is a name too.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stepmark.errors import StepmarkError, UnknownNameError, UsageError, told

FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
"""What "package.module:attribute" looks like."""


class Catalog(Mapping[str, str]):
    """A read-only table of names.

    Args:
        what: what it lists, in the singular, for error messages ("PRM family").
        entries: name to "module:Attribute".
    """

    def __init__(self, what: str, entries: Mapping[str, str]) -> None:
        self.what = what
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> str:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def load(self, name: str) -> Any:
        """The object behind a name, or behind "package.module:Attribute".

        Raises:
            UnknownNameError: no such name; the message gives the nearest ones.
            UsageError: the module does not import, or has no such attribute.
        """
        target = self._entries.get(name)
        if target is None:
            if not FACTORY.fullmatch(name):
                raise self.unknown(name)
            target = name
        module, attribute = target.split(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            if error.name is not None and not (module + ".").startswith(error.name + "."):
                raise  # a dependency of that module is missing; that error is the one to read
            raise UsageError(f"{self.what} {name!r}: there is no module {module!r}") from error
        except AttributeError as error:
            raise UsageError(f"{self.what} {name!r}: {module} has no {attribute!r}") from error

    def make(self, name: str, wanted: Sequence[str], *, article: str = "a") -> Any:
        """What the call of a user's function or class gives.

        Args:
            name: a name here, or "package.module:factory".
            wanted: attributes that it must have.
            article: of `what`, in messages.

        Raises:
            UnknownNameError: no such name.
            UsageError: nothing to call, a call or an import that raised a foreign error, or something else made.
        """
        thing = f"{article} {self.what}"
        try:
            factory = self.load(name)
        except StepmarkError:
            raise  # it says itself what to do
        except Exception as error:
            raise _failed(name, "importing it", error) from error
        if not callable(factory):
            raise UsageError(
                f"{name} is a {type(factory).__name__}; expected a function or class whose call gives {thing}"
            )
        try:
            made = factory()
        except StepmarkError:
            raise
        except Exception as error:
            raise _failed(name, "its call", error) from error
        lacking = [item for item in wanted if getattr(made, item, _ABSENT) is _ABSENT]
        if lacking:
            raise UsageError(
                f"{name}: expected {thing} from its call, found a {type(made).__name__}, which has no {', '.join(lacking)}"
            )
        return made

    def unknown(self, name: str) -> UnknownNameError:
        """The error for a name that is not here."""
        return unknown_name(self.what, name, self)


_ABSENT = object()


def _failed(name: str, what: str, error: Exception) -> UsageError:
    return UsageError(f"{name}: {what} failed: {told(error)} (STEPMARK_DEBUG=1 shows how it came there)")


def unknown_name(what: str, name: str, known: Mapping[str, Any] | tuple[str, ...]) -> UnknownNameError:
    """The error for an unknown name, with the nearest known ones and then all of them."""
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    return UnknownNameError(f"there is no {what} {name!r}.{hint} Known: {', '.join(sorted(known))}")
