"""``python -m tencost.cli``: the same as ``tencost``."""

from tencost.cli import main

main()
