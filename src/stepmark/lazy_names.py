"""Public names of a package, loaded when they are first used: they stand once, in the package's `__init__.pyi`."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

_IMPORT = re.compile(r"^from (\S+) import (\w+) as (\w+)$", re.MULTILINE)


def lazy_names(
    package: str,
    fallback: Callable[[str], Any] | None = None,
    more: Callable[[], Iterable[str]] = tuple,
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The `__getattr__`, `__dir__` and `__all__` of a package (PEP 562) with a stub of lines `from MODULE import NAME as NAME`.

    Args:
        package: its `__name__`.
        fallback: gives what the stub does not list, or raises `AttributeError`.
        more: the names that `fallback` knows.
    """
    stub = Path(str(sys.modules[package].__file__)).with_suffix(".pyi")
    home = {
        public: (module, name) for module, name, public in _IMPORT.findall(stub.read_text(encoding="utf-8"))
    }

    def load(name: str) -> Any:
        if name not in home:
            if fallback is not None and not name.startswith("_"):
                return fallback(name)
            # With both, Python suggests the nearest name.
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package]
            )
        module, attribute = home[name]
        parent = importlib.import_module(module)
        value = getattr(parent, attribute, None) if module != package else None
        if value is None:
            value = importlib.import_module(f"{module}.{attribute}")
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted(
            {*home, *more(), *(name for name in vars(sys.modules[package]) if name.startswith("__"))}
        )

    return load, names, sorted(home)
