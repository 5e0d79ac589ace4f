"""`stepmark serve`: one PRM for many clients, over HTTP. `docs/serve-engine.md` says how a request goes through these files."""
