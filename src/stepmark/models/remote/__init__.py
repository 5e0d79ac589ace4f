"""The client of `stepmark serve`: `stepmark.Client`, `stepmark.AsyncClient`, and the PRM of a server as a `PRM`."""
