"""The old name of :mod:`tencost.workers.runner`."""

import warnings

from tencost.workers.runner import WarmBuilder as WarmBuilder
from tencost.workers.runner import WarmRunner as WarmRunner

warnings.warn(
    "tencost.measure.runner is tencost.workers.runner now", DeprecationWarning, stacklevel=2
)
