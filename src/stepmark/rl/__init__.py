"""Policies trained with process rewards: credit for each token, the trainer, an online PRM, and the monitor of reward hacking.

`rl.credit` is pure functions from rewards to advantages, each with its paper; everything else is built on them. torch is imported here and
nowhere above.
"""
