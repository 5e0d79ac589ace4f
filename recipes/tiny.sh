#!/usr/bin/env bash
# From problems to a PRM that chooses better than a vote, on the arithmetic world, offline, in two minutes on two idle cores:
# problems -> solutions -> rollouts -> labels -> PRM -> best of 8.
#
#   bash recipes/tiny.sh [FOLDER]
#
# Every line can be killed and run again; it goes on where it was.
set -euo pipefail
out=${1:-tiny}
mkdir -p "$out"
policy=stepmark:arithmetic
world=(--steps 3 6 --largest 99 --surface formula)

# Problems to learn from and others to be measured on: another seed, other problems.
stepmark problems arithmetic --count 100 "${world[@]}" --seed 1 --out "$out/problems.jsonl"
stepmark problems arithmetic --count 1000 "${world[@]}" --seed 3 --out "$out/more.jsonl" --solutions "$out/right.jsonl"
stepmark problems arithmetic --count 120 "${world[@]}" --seed 2 --out "$out/test.jsonl"

# Solutions of the tiny policy, right and wrong ones.
stepmark sample "$out/problems.jsonl" --policy $policy --n 3 --temperature 1 --verifier number --out "$out/solutions.jsonl"

# How often does it get there from the end of each step? (successes, trials) of four rollouts a step.
stepmark label rollout "$out/solutions.jsonl" --policy $policy --k 4 --temperature 1 --verifier number --out "$out/rollouts.jsonl"

# What costs no rollout: false calculations in those solutions, and errors put into true ones.
stepmark label formulas "$out/solutions.jsonl" --out "$out/formulas.jsonl"
stepmark label exact "$out/right.jsonl" --wrong 8 --seed 1 --out "$out/exact.jsonl" --keep-going

# A grader of all of them, from the same small network.
rm -rf "$out/prm"
stepmark train "$out/exact.jsonl" "$out/rollouts.jsonl" "$out/formulas.jsonl" --base $policy --objective soft --full --learning-rate 2e-3 --epochs 2 --held-out 0.06 \
    --token-budget 1024 --dtype float32 --evaluations 1 --out "$out/prm"

# Eight new solutions of each test problem: best by the PRM, by majority vote, and by both.
stepmark evaluate best-of-n --policy $policy --data "$out/test.jsonl" --n 8 --temperature 1 --verifier number \
    --prm "$out/prm" --dtype float32 --out "$out/best-of-8"

# The same solutions, graded without any label: a network that learnt right calculations finds the steps unlikely that are wrong.
stepmark evaluate best-of-n --data "$out/best-of-8/candidates.jsonl" --verifier number --prm stepmark:calculator --family mean-logprob \
    --dtype float32 --out "$out/by-likelihood"
