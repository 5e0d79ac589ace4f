#!/usr/bin/env bash
# Train a policy with process rewards in verl: a PRM's score of each step, and a verifier's word on each answer, as an advantage for each token.
#
#   bash recipes/rl_verl.sh problems.jsonl test.jsonl RUN [verl's own settings, as NAME=VALUE …]
#
# Needs: GPUs (verl trains on nothing else), an environment with verl 0.9.1 and stepmark without extras (pip install "verl[verl-core]==0.9.1" stepmark), and
# a PRM on a server, for that environment's transformers is too old for a PRM in process: stepmark serve, or recipes/vllm_behind_stepmark.sh, on GPUs of its own.
# 8 GPUs of 80 GB do for a policy of 7B. Problems are JSON lines with "problem" and "answer". `… RUN --cfg job` prints verl's whole configuration and trains nothing.
#
# POLICY: the policy's folder or hub name. PRM: address of the PRM. TOKENIZER: its tokenizer, where the server is vLLM's and not stepmark's. CREDIT: outcome,
# process, min-form or progress. VERIFIER: as of `stepmark label`. GROUP: completions a problem. PYTHON: of verl's environment.
set -euo pipefail
recipes=$(cd "$(dirname "$0")" && pwd)
train=${1:?problems to train on}
test=${2:?problems to measure on}
run=${3:?a folder}
shift 3
python=${PYTHON:-python}
mkdir -p "$run"
run=$(cd "$run" && pwd)

# What Ray's workers import: the PRM, and the verdict on an answer.
cat >"$run/stepmark_rewards.py" <<PYTHON
from stepmark import load_prm
from stepmark.verifiers.base import load_verifier

_verifier = None


def prm():
    return load_prm("${PRM:-http://127.0.0.1:8008}"${TOKENIZER:+, tokenizer="$TOKENIZER"})


def verdict(data_source, solution_str, ground_truth, extra_info):
    global _verifier
    _verifier = _verifier or load_verifier("${VERIFIER:-math}", answers="marked")
    # verl wants a number: an answer that cannot be read is not a right one.
    return float(_verifier.verify(solution_str, ground_truth).correct is True)
PYTHON

"$python" "$recipes/rl_verl_rows.py" "$train" "$run/train.parquet"
"$python" "$recipes/rl_verl_rows.py" "$test" "$run/test.parquet"

export PYTHONPATH="$run${PYTHONPATH:+:$PYTHONPATH}"
export VERL_USE_EXTERNAL_MODULES=stepmark.rl.adapters.verl
exec "$python" -m verl.trainer.main_ppo \
    algorithm.adv_estimator="stepmark-${CREDIT:-process}" \
    reward.reward_manager.name=stepmark \
    +reward.reward_kwargs.prm=stepmark_rewards:prm \
    +reward.reward_kwargs.problem=question \
    reward.custom_reward_function.path="$run/stepmark_rewards.py" \
    reward.custom_reward_function.name=verdict \
    reward.num_workers=32 \
    actor_rollout_ref.model.path="${POLICY:-Qwen/Qwen2.5-1.5B-Instruct}" \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n="${GROUP:-8}" \
    actor_rollout_ref.rollout.agent.default_agent_loop=stepmark_single_turn \
    actor_rollout_ref.actor.use_kl_loss=true \
    data.train_files="$run/train.parquet" \
    data.val_files="$run/test.parquet" \
    trainer.default_local_dir="$run/checkpoints" \
    +ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES=stepmark.rl.adapters.verl \
    +ray_kwargs.ray_init.runtime_env.env_vars.PYTHONPATH="$PYTHONPATH" \
    "$@"
