"""`stepmark serve`: one PRM for many clients.

`batcher` gathers what all clients ask into batches for one compute thread; `backend` is what computes; `sessions` keeps prefixes
that grow. What is above them (HTTP, keys, figures) knows no model, and what is below them no request.
"""
