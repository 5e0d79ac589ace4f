"""Stands in for `vllm serve CHECKPOINT … --port PORT` where there is no vLLM: `stepmark serve` answers `/pooling` in the same shape."""

import sys

from stepmark.cli import main

if __name__ == "__main__":
    words = sys.argv[1:]
    assert words[0] == "serve" and words[words.index("--runner") + 1] == "pooling"
    port = words[words.index("--port") + 1]
    raise SystemExit(
        main(["serve", "--prm", words[1], "--port", port, "--dtype", "float32", "--device", "cpu", "--quiet"])
    )
