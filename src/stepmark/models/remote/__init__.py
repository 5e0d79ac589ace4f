"""The client of `stepmark serve`: `stepmark.Client`, `stepmark.AsyncClient`, and a server's PRM as a PRM of ours.

What travels is written down on the other side (`serving.wire`); here is what a client needs of it (`answers`, `calls`, `growing`), because
nothing in `models` may know the server. What is asked, asked again and believed is decided without any I/O (`exchange`), so that the
two clients differ in `await` alone.
"""
