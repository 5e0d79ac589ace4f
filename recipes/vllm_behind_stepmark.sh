#!/usr/bin/env bash
# A PRM of many billion weights for many clients: vLLM computes it, stepmark stands before it.
#
#   bash recipes/vllm_behind_stepmark.sh CHECKPOINT [flags of stepmark serve …]
#
# vLLM runs the network; `stepmark serve` cuts solutions, encodes them, reads the scores as the checkpoint's family says, aggregates, and adds what a public server needs:
# keys, limits, deadlines, backpressure, metrics. Clients need neither tokenizer nor torch: load_prm("http://HOST:8008").
#
# Needs: a GPU that holds the checkpoint (a 7B one in bfloat16 is 15 GB, and vLLM takes the rest for its cache), vLLM in an environment of its own, `pip install 'stepmark[serve,local]'`
# in this one (the tokenizer is read here). CHECKPOINT is a folder or hub name that vLLM's /pooling serves: Qwen2.5-Math-PRM, token classifiers, what `stepmark train` writes. Prefixes
# are not shared so: vLLM's pooling scores every text whole. On one GPU `stepmark serve --prm CHECKPOINT` computes less.
#
# VLLM: the command (default: vllm). VLLM_FLAGS: more flags for it. VLLM_PORT: 8000. POOLER: its pooler; the default gives a row for every token, right for all of them;
# the card of a checkpoint of ours names one that sends less. WAIT: seconds until it must be there.
set -euo pipefail
checkpoint=${1:?a checkpoint: folder or hub name}
shift
port=${VLLM_PORT:-8000}
pooler=${POOLER:-'{"task": "token_classify", "tok_pooling_type": "ALL"}'}

# VLLM and VLLM_FLAGS may be several words.
# shellcheck disable=SC2086
${VLLM:-vllm} serve "$checkpoint" --runner pooling --pooler-config "$pooler" --host 127.0.0.1 --port "$port" ${VLLM_FLAGS:-} &
vllm=$!
front=
trap 'kill $vllm $front 2>/dev/null || true; wait' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

for ((second = 0; ; second++)); do
    kill -0 "$vllm" 2>/dev/null || { echo "vLLM ended before it was ready" >&2; exit 1; }
    "${PYTHON:-python3}" -c "import sys, urllib.request as u; u.build_opener(u.ProxyHandler({})).open(sys.argv[1], timeout=2)" "http://127.0.0.1:$port/health" 2>/dev/null && break
    ((second < ${WAIT:-900})) || { echo "vLLM was not ready after $second seconds" >&2; exit 1; }
    sleep 1
done

# Not `exec`: whichever of the two ends first takes the other with it.
stepmark serve --prm "http://127.0.0.1:$port" --tokenizer "$checkpoint" "$@" &
front=$!
wait -n "$vllm" "$front"
