"""The machines: PRMs, policies, the encoding of solutions, and the engine that computes every prefix once."""
