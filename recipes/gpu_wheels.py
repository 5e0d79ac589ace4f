"""Print the packages that stepmark needs beside those of torch and transformers: what `gpu.sh pack` downloads.

Versions are not printed: constraints.txt has them. It reads what is installed here, which must be all of `stepmark[default,train,evaluate,serve]`.
"""

from __future__ import annotations

from importlib.metadata import requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PRESENT = {
    *(
        "accelerate",
        "huggingface-hub",
        "jinja2",
        "matplotlib",
        "numpy",
        "packaging",
        "psutil",
        "pyyaml",
        "safetensors",
    ),
    *("sympy", "tokenizers", "torch", "tqdm", "transformers", "typing-extensions"),
    # What makes uvicorn faster, and 5 MB to carry.
    *("httptools", "python-dotenv", "uvloop", "watchfiles", "websockets"),
}
"""What a machine with torch and transformers has, two more that `recipes/gpu.sh` names, and what can be left out."""


def needed(name: str) -> set[str]:
    """Packages that a requirement (which may have extras) needs, with what those need."""
    found: set[tuple[str, str]] = set()
    waiting = [Requirement(name)]
    while waiting:
        requirement = waiting.pop()
        package = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (package, extra) not in found and package not in PRESENT:
                found.add((package, extra))
                more = map(Requirement, requires(package) or ())
                waiting += [r for r in more if r.marker is None or r.marker.evaluate({"extra": extra})]
    return {package for package, _ in found}


if __name__ == "__main__":
    print(*sorted(needed("stepmark[default,train,evaluate,serve]") - {"stepmark"}))  # noqa: T201
