#!/usr/bin/env bash
# The default PRM, second version: data, training, calibration and threshold, figures. An hour or two on a CPU core, minutes on a GPU.
#
#   bash recipes/default_prm.sh [--quick] [FOLDER]
#
# It needs the public data that docs/default-prm.md names, in the folder $STEPMARK_DATA: gsm8k/train.jsonl.gz, math/svamp.jsonl.gz,
# prm800k/phase1_train.jsonl.gz, and for the figures the development halves of benchmarks/default_prm.py. Every line can be killed and run
# again; it goes on where it was. --quick shows that it runs, and makes no grader.
#
# TOKENS: distinct tokens of data. MINUTES: end training by the clock. WARM: an adapter to start from ("default" for the PRM that ships).
set -euo pipefail
cd "$(dirname "$0")/.."
quick=()
if [ "${1:-}" = --quick ]; then
    quick=(--quick)
    shift
fi
out=${1:-default-prm${quick:+-quick}}
data=${STEPMARK_DATA:-../shared/data}
tokens=${TOKENS:-${quick:+5000}}
tokens=${tokens:-900000}
held=135
[ ${#quick[@]} -eq 0 ] || held=8

if [ ! -e "$out/rows/prm800k.jsonl" ]; then
    python recipes/default_prm_data.py "$out/rows" --gsm8k "$data/gsm8k/train.jsonl.gz" --svamp "$data/math/svamp.jsonl.gz" \
        --prm800k "$data/prm800k/phase1_train.jsonl.gz" --tokens "$tokens" --held-out "$held"
fi

# One logit at a mark after each step, and the language-modelling loss of right steps' numbers and words of quantity beside it. The map and
# the threshold are fitted on whole solutions of other problems, half of them people's ratings of a model's.
if [ ! -e "$out/prm" ]; then
    stepmark train "$out/rows/gsm8k.jsonl" "$out/rows/svamp.jsonl" "$out/rows/prm800k.jsonl" --held-out-data "$out/rows/held_out.jsonl" \
        --adapter --lora-rank 32 --lora-alpha 64 --frozen-layers 10 --learning-rate 8e-4 --head-rate 0.3 --objective hard --set language_weight=0.3 \
        --set language_tokens=quantities \
        --epochs 1 --token-budget 1024 --max-tokens 512 --evaluations 2 --tune-threshold \
        ${WARM:+--warm-start "$WARM"} ${MINUTES:+--minutes "$MINUTES"} --out "$out/prm"
fi

python -m benchmarks.default_prm --prm "$out/prm" --out "$out/evaluation" ${quick[@]+"${quick[@]}"}
