"""stepmark inside the tools of others: inspect_ai, lm-evaluation-harness, the Hugging Face hub.

No tool is imported before its module is: `integrations.inspect_ai` and `integrations.lm_eval` need the package of that name, `hub`
only where it is used. What needs none of them is in `integrations.candidates`.
"""
