"""What flags of several commands are made of."""

from typing import Annotated

from cyclopts import Parameter

Flag = Annotated[bool, Parameter(negative="", show_default=False)]
"""A switch that is off: there is --name, no --no-name, and help shows no default."""
