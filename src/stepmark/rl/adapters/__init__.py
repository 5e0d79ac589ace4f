"""Process rewards for the trainers of others: TRL's GRPO (`adapters.trl`) and verl (`adapters.verl`).

Neither is imported before its module is; what both share, and what needs neither, is in `adapters.completions`.
"""
