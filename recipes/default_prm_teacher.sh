#!/usr/bin/env bash
# The default PRM, taught by a 7B PRM: short runs of training, each from the weights of the one before, each of which ends in a calibrated checkpoint.
#
#   bash recipes/default_prm_teacher.sh ROWS [FOLDER]
#
# ROWS: the rows of the first recipe (ROWS_ONLY=1 bash recipes/default_prm.sh; then FOLDER/rows there). STEPMARK_DATA: the folder with
# strictprm/{gsm8k,math500}.dev.jsonl.gz and the benchmarks' files. Rerun the same command to resume; finished rounds are not repeated.
# RATES: the peak learning rate of each round, in order; their number is that of the rounds. WARM: what the first round starts from. FROM: the
# number of the first round, where rounds before it were trained. SAMPLES: rows of solutions that models wrote (samples.jsonl of the first recipe).
# What ships: four rounds, of which the last three are averaged; the threshold from held-out labels of the teacher and judged samples of other
# problems, with the exact checks on.
set -euo pipefail
cd "$(dirname "$0")/.."
rows=${1:?the folder of rows that recipes/default_prm.sh wrote}
out=${2:-default-prm-taught}
data=${STEPMARK_DATA:-../shared/data}
read -ra rates <<< "${RATES:-6e-4 6e-4 6e-4 5e-4}"
from=${FROM:-1}

if [ ! -e "$out/rows/done" ]; then
    python recipes/default_prm_teacher.py "$out/rows" --candidates "$data"/strictprm/{gsm8k,math500}.dev.jsonl.gz \
        --benchmark "$data"/processbench/{gsm8k,math}.dev.jsonl.gz --rounds $((from + ${#rates[@]} - 1)) --from-round "$from" \
        --beside "$rows/prm800k.jsonl=5" "$rows/gsm8k.jsonl=24" ${SAMPLES:+--samples "$SAMPLES=3"}
    touch "$out/rows/done"
fi

# Soft labels; the language-modelling loss of right steps' numbers and words of quantity beside them, as in the first recipe.
previous=${WARM:-default}
for number in "${!rates[@]}"; do
    round=$((number + from))
    stepmark train "$out/rows/round-$round.jsonl" --held-out-data "$out/rows/teacher_held_out.jsonl" \
        --adapter --lora-rank 32 --lora-alpha 64 --frozen-layers 10 --learning-rate "${rates[number]}" --head-rate 0.3 --objective soft \
        --set language_weight=0.3 --set language_tokens=quantities --epochs 1 --token-budget 1024 --max-tokens 640 --evaluations 1 --tune-threshold \
        --seed "$round" --warm-start "$previous" --out "$out/prm-$round"
    previous=$out/prm-$round
done

last=$((from + ${#rates[@]} - 1))
if [ ! -e "$out/prm" ]; then
    if [ "${#rates[@]}" -ge 3 ]; then
        python recipes/default_prm_average.py "$out/prm" "$out/prm-$((last - 2))" "$out/prm-$((last - 1))" "$out/prm-$last"
    else
        cp -r "$out/prm-$last" "$out/prm"
    fi
fi
python recipes/default_prm_threshold.py "$out/prm" "$rows/threshold.jsonl" --not "$out/rows/taught.jsonl" \
    --labelled "$out/rows/teacher_held_out.jsonl" --graded "$out/graded" --write
