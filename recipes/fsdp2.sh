#!/usr/bin/env bash
# A PRM over a base that does not fit one GPU in training: weights, gradients and optimizer state shared out among GPUs (FSDP2).
#
#   bash recipes/fsdp2.sh LABELS OUT [flags of stepmark train …]
#
# LABELS is a file of labelled solutions (`stepmark label`, `stepmark convert`) or a data set's name; OUT the checkpoint's folder. Killed, the same line with as many processes goes on.
#
# Needs: GPUS of one machine that together hold 16 bytes a weight and activations (8 of 80 GB: 7B with room; docs/training.md#settings has the sum), main memory for the base once a
# process, `pip install 'stepmark[train]'`. Not for objectives that read the language-model head (target-tokens, implicit-*, generative) nor with language_weight.
#
# BASE: the model (default: Qwen/Qwen2.5-Math-7B). TOKENS: distinct tokens a pass (8192). ROWS: rows a step, over all processes (64).
# GPUS: processes of this machine (8; without GPUs they run on the CPU, to try it out). NODES, RANK, HEAD: for several machines: how many,
# which one this is from 0, and HOST:PORT of the first; OUT is then a folder that all of them see.
set -euo pipefail
labels=${1:?labelled solutions: a file, or OWNER/NAME of a data set}
out=${2:?the folder of the checkpoint}
shift 2

if [[ ${NODES:-1} == 1 ]]; then
    where=(--standalone)
else
    where=(--nnodes "$NODES" --node-rank "${RANK:?which machine this is, from 0}" --rdzv-backend c10d --rdzv-id stepmark --rdzv-endpoint "${HEAD:?HOST:PORT of the first machine}")
fi

# All weights, computed in bfloat16 and updated in float32; activations computed twice.
exec "${PYTHON:-python3}" -m torch.distributed.run "${where[@]}" --nproc-per-node "${GPUS:-8}" -m stepmark train "$labels" --out "$out" \
    --base "${BASE:-Qwen/Qwen2.5-Math-7B}" --full --shard --gradient-checkpointing --token-budget "${TOKENS:-8192}" --rows-per-step "${ROWS:-64}" "$@"
