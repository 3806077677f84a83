"""``python -m tencost.measure.server``: the old name of :mod:`tencost.workers.server`."""

from tencost.workers.server import main

if __name__ == "__main__":
    main()
