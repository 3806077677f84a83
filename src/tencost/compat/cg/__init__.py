"""The CG benchmark's own interface (DGRL-Hardware), for who has scripts and configurations for it.

A thin layer: graphs are read, divided, encoded and convolved by the rooms below.
"""

from tencost.compat.cg.data import CGDataProcessor as CGDataProcessor
from tencost.compat.cg.runner import CGRunner as CGRunner
from tencost.compat.cg.settings import load_config as load_config
