"""The front door. ``tencost.cli:main`` is the console script."""

from tencost.cli.main import COMMANDS as COMMANDS
from tencost.cli.main import main as main
