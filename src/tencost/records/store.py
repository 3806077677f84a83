"""The old name of :mod:`tencost.store.record_store`."""

import warnings

from tencost.store.record_store import RecordStore as RecordStore

warnings.warn(
    "tencost.records.store is tencost.store.record_store now", DeprecationWarning, stacklevel=2
)
