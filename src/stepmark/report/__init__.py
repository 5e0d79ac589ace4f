"""How graded steps look: colours, terminal lines, HTML. Works on plain strings and numbers."""
