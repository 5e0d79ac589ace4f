"""`stepmark serve`: one PRM for many clients, over HTTP. `docs/engine.md` says how a request is computed."""
