"""`autotvm_knobs`: the name of `configuration` in projects and bundles of tencost 0.2 and before."""

from tencost.features.kinds.configuration import KIND as KIND
