"""A score server as people write it today, in forty lines: transformers' own class, one forward pass a solution, behind a lock.

`python -m benchmarks.serve_naive FOLDER --port N [--dtype bfloat16]`

The opponent of `benchmarks.serve`. It computes each solution whole, by itself, and keeps nothing; it does so without a gradient, in the same precision and with as many threads as
ours, and does not return a cache that nobody reads. Nothing of stepmark is in it, so its scores also check ours.
"""

from __future__ import annotations

import argparse
import json
import threading
from pathlib import Path
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel


class Item(BaseModel):
    """A solution."""

    problem: str
    steps: list[str]


class ScoreRequest(BaseModel):
    """Some solutions."""

    solutions: list[Item]


def build(folder: Path, dtype: torch.dtype) -> FastAPI:
    """The app, with the checkpoint loaded.

    Args:
        folder: a merged checkpoint with a linear head of one label, in the layout of transformers' token classification.
        dtype: of the model.
    """
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    spec = json.loads((folder / "stepmark.json").read_text(encoding="utf-8"))
    layout, readout = spec["layout"], spec["readout"]
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForTokenClassification.from_pretrained(folder, dtype=dtype).eval()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model.to(device)
    mark = tokenizer(layout["mark"], add_special_tokens=False)["input_ids"][-1]
    lock = threading.Lock()
    app = FastAPI()

    def scores(item: Item) -> list[float]:
        text = layout["opening"].replace("{problem}", item.problem)
        text += "".join(step + layout["mark"] for step in item.steps)
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"].to(device)
        logits = model(input_ids=ids, use_cache=False).logits[0, ids[0] == mark, 0].float()
        found: list[float] = torch.sigmoid(readout["scale"] * logits + readout["shift"]).tolist()
        return found

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/score")
    def score(request: ScoreRequest) -> dict[str, list[list[float]]]:
        with lock, torch.inference_mode():
            return {"scores": [scores(item) for item in request.solutions]}

    return app


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    options = parser.parse_args()
    app = build(options.folder, getattr(torch, options.dtype))
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
