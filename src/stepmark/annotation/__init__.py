"""The web app where people label steps: what is shown, what was clicked, who may, what comes out.

An item is a solution to be rated. Every acknowledged click is one `Change` in a log that is never rewritten; what an annotator
says of an item now (`Marks`) is that log, folded by the server. So undo, crash, reload and export all read the same facts.
"""
