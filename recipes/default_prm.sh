#!/usr/bin/env bash
# The default PRM, second version: data, training, calibration and threshold, figures. An hour or two on a CPU core, minutes on a GPU.
#
#   bash recipes/default_prm.sh [--quick] [FOLDER]
#
# It needs the public data that docs/default-prm.md names, in the folder $STEPMARK_DATA: gsm8k/train.jsonl.gz, math/svamp.jsonl.gz,
# prm800k/phase1_train.jsonl.gz, and for the figures the development halves of benchmarks/default_prm.py. Every line can be killed and run
# again; it goes on where it was. --quick shows that it runs, and makes no grader.
#
# TOKENS: distinct tokens of data. PASSES: trees of errors a worked problem. MINUTES: end training by the clock. WARM: an adapter to start from
# ("default" for the PRM that ships). SAMPLES: files of solutions that models wrote (recipes/default_prm_data.py --samples).
# ROWS_ONLY=1: stop after the data. TRAIN_ONLY=1: stop after the threshold, without figures.
# CANDIDATES=train: train on samples on GSM8K test problems too, if the benchmarks' files here are whole.
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

# What is here of the other data: problems that nothing is trained on, and samples.
more=()
for name in processbench/gsm8k.dev processbench/math.dev math/math500; do
    [ ! -e "$data/$name.jsonl.gz" ] || more+=(--benchmark "$data/$name.jsonl.gz")
done
for name in gsm8k/test prm800k/phase1_test; do
    [ ! -e "$data/$name.jsonl.gz" ] || more+=(--test "$data/$name.jsonl.gz")
done
name=gsm8k/candidates_16_models.dev
[ ! -e "$data/$name.jsonl.gz" ] || more+=(--candidates "$data/$name.jsonl.gz")
[ "${CANDIDATES:-}" != train ] || more+=(--train-on-candidates)
for file in ${SAMPLES:-}; do
    more+=(--samples "$file")
done

if [ ! -e "$out/rows/done" ]; then
    python recipes/default_prm_data.py "$out/rows" --gsm8k "$data/gsm8k/train.jsonl.gz" --svamp "$data/math/svamp.jsonl.gz" \
        --prm800k "$data/prm800k/phase1_train.jsonl.gz" --tokens "$tokens" --passes "${PASSES:-1}" --held-out "$held" \
        ${more[@]+"${more[@]}"}
    touch "$out/rows/done"
fi
[ -z "${ROWS_ONLY:-}" ] || exit 0
rows=("$out"/rows/{gsm8k,svamp,prm800k}.jsonl)
[ ! -e "$out/rows/samples.jsonl" ] || rows+=("$out/rows/samples.jsonl")

# One logit at a mark after each step, and the language-modelling loss of right steps' numbers and words of quantity beside it. The map is
# fitted on whole solutions of other problems, half of them people's ratings of a model's; the threshold too, where there are no samples for it.
if [ ! -e "$out/prm" ]; then
    stepmark train "${rows[@]}" --held-out-data "$out/rows/held_out.jsonl" --base stepmark:smollm2-135m-instruct --checks all \
        --adapter --lora-rank 32 --lora-alpha 64 --frozen-layers 10 --learning-rate 8e-4 --head-rate 0.3 --objective hard --set language_weight=0.3 \
        --set language_tokens=quantities \
        --epochs 1 --token-budget 1024 --max-tokens 512 --evaluations 2 --tune-threshold \
        ${WARM:+--warm-start "$WARM"} ${MINUTES:+--minutes "$MINUTES"} --out "$out/prm"
fi

# The threshold, from samples of many models of which only the final answer was checked, where they are here.
if [ -s "$out/rows/threshold.jsonl" ] && [ ! -e "$out/threshold.json" ]; then
    [ ${#quick[@]} -eq 0 ] || sed -i 65,\$d "$out/rows/threshold.jsonl"
    python recipes/default_prm_threshold.py "$out/prm" "$out/rows/threshold.jsonl" --graded "$out/graded" --write \
        | tee "$out/threshold.part"
    mv "$out/threshold.part" "$out/threshold.json"
fi

[ -z "${TRAIN_ONLY:-}" ] || exit 0
python -m benchmarks.default_prm --prm "$out/prm" --out "$out/evaluation" ${quick[@]+"${quick[@]}"}
