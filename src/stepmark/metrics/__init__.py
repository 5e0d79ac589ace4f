"""Figures on plain numbers, and how sure one can be of them. Pure functions; numpy and nothing heavier."""
