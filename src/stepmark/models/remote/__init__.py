"""The PRM of a `stepmark serve` as a `PRM`, and what both sides write on the wire."""
