"""The CG benchmark's own interface (DGRL-Hardware), for who has scripts and configurations for it.

A thin layer: graphs are read, divided, encoded and convolved by the rest of :mod:`tencost.graphs`.
"""

from tencost.graphs.cg.data import CGDataProcessor as CGDataProcessor
from tencost.graphs.cg.runner import CGRunner as CGRunner
from tencost.graphs.cg.settings import load_config as load_config
