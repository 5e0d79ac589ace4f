"""Problems as the rows that verl trains on: `python recipes/rl_verl_rows.py problems.jsonl train.parquet`.

Needs pandas and pyarrow, which verl's environment has, and stepmark without extras.
"""

from __future__ import annotations

import sys

import pandas

from stepmark.problems.loading import read_problems

INSTRUCTION = "Solve the problem step by step, one step a line. Put the final answer in \\boxed{}."

pandas.DataFrame(
    {
        "data_source": problem.source or "problems",
        "prompt": [{"role": "user", "content": f"{problem.text}\n\n{INSTRUCTION}"}],
        "reward_model": {"style": "rule", "ground_truth": problem.answer},
        # The PRM reads the problem as it is, without the instruction.
        "extra_info": {"index": number, "question": problem.text},
    }
    for number, problem in enumerate(read_problems(sys.argv[1]))
).to_parquet(sys.argv[2])
