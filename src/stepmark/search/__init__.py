"""Search for solutions with a policy and a PRM: `stepmark.search(problems, policy, prm)`; the methods are here by name."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Search(ModuleType):
    """The package as a function: `import stepmark` makes `stepmark.search` this module, which may be called."""

    def __call__(self, *args: Any, **settings: Any) -> Any:
        from stepmark.search.problems import search

        return search(*args, **settings)

    def __getattr__(self, name: str) -> Any:
        if name == "__signature__":
            import inspect

            from stepmark.search.problems import search

            return inspect.signature(search)
        if not name.startswith("_"):
            from stepmark.search.public import SearchAPI

            if name in vars(SearchAPI):
                return getattr(SearchAPI, name)
        raise AttributeError(f"module 'stepmark.search' has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        from stepmark.search.public import SearchAPI

        return sorted(name for name in vars(SearchAPI) if not name.startswith("_"))


sys.modules[__name__].__class__ = _Search
