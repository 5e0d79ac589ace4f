"""vLLM's `/pooling` that reads vLLM's prefix cache: a growing search computes the new steps alone.

    python recipes/vllm_prefix_cache.py CHECKPOINT [--port 8000] [--step-tag 151651] [--engine '{"dtype": "bfloat16"}']
    stepmark search beam problems.jsonl … --prm http://127.0.0.1:8000 --tokenizer CHECKPOINT

`vllm serve` computes each text whole for a PRM, because a position that comes from the cache has no row. This server reads the cache, keeps the rows of the blocks that
it has computed, and fills in the rows that vLLM leaves out. A row that is no longer known is computed again. Clients ask as they ask `vllm serve`, for logits.

Needs: vLLM 0.32 in this environment (the only package that is needed), and a checkpoint that it serves with one row a token: Qwen2.5-Math-PRM, token classifiers, what
`stepmark train` writes. `--step-tag` sends the rows at one token alone, the mark of steps: 151651 is `<extra_0>` of Qwen2.5-Math. It answers every client that reaches it:
leave it on 127.0.0.1 and put `stepmark serve` before it.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import uuid
from array import array
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import torch
from torch import Tensor


class PrefixRows:
    """The head's rows for all tokens of a text, of which the engine computes those that are new.

    Args:
        engine: vLLM's `AsyncLLM`, or what has its `encode`.
        params: makes the `PoolingParams` of a request from `skip_reading_prefix_cache`.
        block: tokens of a block of the engine's cache.
        blocks: blocks whose rows are kept; those that were used longest ago are forgotten.
    """

    def __init__(self, engine: Any, params: Any, *, block: int, blocks: int) -> None:
        self._engine, self._params, self._block, self._blocks = engine, params, block, blocks
        self._rows: OrderedDict[bytes, Tensor] = OrderedDict()
        self._running: set[asyncio.Task[tuple[int, Tensor]]] = set()

    async def of(self, ids: list[int]) -> tuple[Tensor, int]:
        """The rows [tokens, classes], and how many tokens came from the engine's cache."""
        first, rows = await self._read(ids, skip=False)
        if first == 0:
            return rows, 0
        known = self._known(ids, first)
        if known is None and self._running:  # another request computes them
            await asyncio.wait(set(self._running))
            known = self._known(ids, first)
        if known is None:
            _, rows = await self._read(ids, skip=True)
            return rows, 0
        return torch.cat([known, rows]), first

    async def _read(self, ids: list[int], *, skip: bool) -> tuple[int, Tensor]:
        task = asyncio.ensure_future(self._compute(ids, skip))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await task

    async def _compute(self, ids: list[int], skip: bool) -> tuple[int, Tensor]:
        """The first position that was computed, and the rows from there."""
        params = self._params(skip_reading_prefix_cache=skip)
        rows = None
        async for output in self._engine.encode({"prompt_token_ids": ids}, params, str(uuid.uuid4())):
            rows = output.outputs.data
        if rows is None:
            raise RuntimeError("the engine gave no rows")
        first = len(ids) - len(rows)
        for start, key in self._keys(ids):
            if start >= first:
                self._rows[key] = rows[start - first : start - first + self._block].clone()
                self._rows.move_to_end(key)
        while len(self._rows) > self._blocks:
            self._rows.popitem(last=False)
        return first, rows

    def _known(self, ids: list[int], count: int) -> Tensor | None:
        """The rows of the first tokens; None where some are not known."""
        pieces = []
        for start, key in self._keys(ids):
            if start >= count:
                break
            if key not in self._rows:
                return None
            self._rows.move_to_end(key)
            pieces.append(self._rows[key])
        rows = torch.cat(pieces) if pieces else None
        return None if rows is None or len(rows) < count else rows[:count]

    def _keys(self, ids: list[int]) -> Iterator[tuple[int, bytes]]:
        """Where each full block begins, and a key of all tokens up to its end."""
        text = hashlib.sha256()
        for start in range(0, len(ids) - self._block + 1, self._block):
            text.update(array("q", ids[start : start + self._block]))
            yield start, text.digest()


async def serve(options: argparse.Namespace) -> None:
    """Answer `/pooling`, `/v1/models` and `/health` until Ctrl-C."""
    import uvicorn
    from fastapi import FastAPI, HTTPException
    from vllm import PoolingParams
    from vllm.config import PoolerConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    settings = {
        "runner": "pooling",
        "pooler_config": PoolerConfig(task="token_classify", tok_pooling_type="ALL"),
        "enable_prefix_caching": True,
        **options.engine,
    }
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=options.checkpoint, **settings))
    cache = engine.vllm_config.cache_config
    texts = PrefixRows(
        engine,
        lambda **more: PoolingParams(task="token_classify", use_activation=False, **more),
        block=cache.block_size,
        blocks=cache.num_gpu_blocks or options.blocks,
    )
    longest = engine.vllm_config.model_config.max_model_len

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        engine.shutdown()  # else its processes go on

    app = FastAPI(lifespan=lifespan)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        entry = {"id": options.checkpoint, "object": "model", "root": options.checkpoint}
        return {"object": "list", "data": [{**entry, "max_model_len": longest}]}

    @app.post("/pooling")
    async def pooling(body: dict[str, Any]) -> dict[str, Any]:
        given = body.get("input")
        if body.get("use_activation") is not False or not isinstance(given, list):
            raise HTTPException(400, "expected input, lists of token ids, and use_activation: false")
        if not all(isinstance(ids, list) and 0 < len(ids) <= longest for ids in given):
            raise HTTPException(400, f"expected lists of 1 to {longest} token ids")
        found = await asyncio.gather(*(texts.of(ids) for ids in given))
        data = []
        for index, (ids, (rows, _)) in enumerate(zip(given, found, strict=True)):
            sent = rows if options.step_tag is None else rows[torch.tensor(ids) == options.step_tag]
            data.append({"index": index, "object": "pooling", "data": sent.tolist()})
        tokens, cached = sum(map(len, given)), sum(count for _, count in found)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        usage |= {"prompt_tokens_details": {"cached_tokens": cached}}
        return {"object": "list", "model": options.checkpoint, "data": data, "usage": usage}

    await uvicorn.Server(uvicorn.Config(app, host=options.host, port=options.port)).serve()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", help="folder or hub name")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--step-tag", type=int, metavar="ID", help="send rows at this token id alone")
    parser.add_argument(
        "--blocks",
        type=int,
        default=65_536,
        help="blocks whose rows are kept where vLLM does not tell its own",
    )
    parser.add_argument(
        "--engine", type=json.loads, default={}, metavar="JSON", help="more arguments of vLLM's engine"
    )
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
