"""Train a policy with process rewards: `stepmark.rl(problems, policy, prm, out=…)`; settings and credit methods are here by name.

`rl.credit` is pure functions from rewards to advantages, each with its paper; the trainer and the monitor are built on them.
"""

from stepmark.catalog import callable_package

callable_package(__name__, "stepmark.rl.run:rl", "stepmark.rl.public:RLAPI")
