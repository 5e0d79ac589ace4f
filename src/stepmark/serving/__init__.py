"""`stepmark serve`: one PRM for many clients, over HTTP. `docs/scale.md#prefixes-are-computed-once` says how a request is computed."""
