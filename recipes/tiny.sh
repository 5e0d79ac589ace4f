#!/usr/bin/env bash
# From 120 labelled solutions to a PRM that chooses better than an outcome model of the same solutions, which chooses better than a vote,
# on the arithmetic world, offline: problems -> solutions -> rollouts and planted errors -> labels -> PRM and outcome model -> best of 16.
#
#   bash recipes/tiny.sh [FOLDER]
#
# Every line can be killed and run again; it goes on where it was. Its settings, and the product of the scores as the way to choose, were
# settled on 150 problems of seed 5.
set -euo pipefail
out=${1:-tiny}
mkdir -p "$out"
policy=stepmark:arithmetic # whose solutions are graded
base=stepmark:calculator   # what the graders are made of: a network of the same size that learnt right calculations
world=(--steps 3 6 --largest 99 --surface formula)

# Problems to learn from and others to be measured on: another seed, other problems. Of some, worked solutions.
stepmark problems arithmetic --count 30 "${world[@]}" --seed 1 --out "$out/problems.jsonl"
stepmark problems arithmetic --count 300 "${world[@]}" --seed 3 --out "$out/more.jsonl" --solutions "$out/worked.jsonl"
stepmark problems arithmetic --count 40 "${world[@]}" --seed 4 --out "$out/others.jsonl" --solutions "$out/others-worked.jsonl"
stepmark problems arithmetic --count 400 "${world[@]}" --seed 2 --out "$out/test.jsonl"

# Solutions of the tiny policy, right and wrong ones.
stepmark sample "$out/problems.jsonl" --policy $policy --n 4 --temperature 1 --verifier number --out "$out/solutions.jsonl"

# How often does it get there from the end of each step? (successes, trials) of four rollouts a step.
stepmark label rollout "$out/solutions.jsonl" --policy $policy --k 4 --temperature 1 --verifier number --out "$out/rollouts.jsonl"

# Errors put into worked solutions, whose place is known: the labels of rollouts alone are too noisy to find first errors.
stepmark label exact "$out/worked.jsonl" --wrong 4 --seed 1 --out "$out/exact.jsonl"
stepmark label exact "$out/others-worked.jsonl" --wrong 4 --seed 1 --out "$out/held-out.jsonl"

# A PRM, and an outcome model of the same solutions, from the same base, with the same head, which reads how likely the base finds each token.
how=(--base $base --set token_features=true --mark '\n' --full --learning-rate 5e-4 --head-rate 20 --dtype float32 --evaluations 1)
rm -rf "$out/prm" "$out/orm"
stepmark train "$out/rollouts.jsonl" "$out/exact.jsonl" --objective hard --set language_weight=1 --set language_tokens=all --epochs 5 \
    --token-budget 1024 --held-out-data "$out/held-out.jsonl" "${how[@]}" --out "$out/prm"
stepmark train "$out/rollouts.jsonl" --objective outcome --epochs 20 --token-budget 512 --held-out 0 "${how[@]}" --out "$out/orm"

# Sixteen new solutions of each test problem: the best by the PRM, by the outcome model, by a majority vote.
stepmark evaluate best-of-n --policy $policy --data "$out/test.jsonl" --n 16 --temperature 1 --verifier number \
    --prm "$out/prm" --orm "$out/orm" --dtype float32 --out "$out/best-of-16"
