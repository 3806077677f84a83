"""Which alias is pulled where none is named: an environment's, or the champion."""

from __future__ import annotations

import os
import re

from tencost.errors import ConfigError
from tencost.register.pull import CHAMPION

ALIAS = r"[a-z][a-z0-9-]{0,62}"
"""What an environment's alias looks like."""
ALIAS_VARIABLE = "TENCOST_ALIAS"


def default_alias() -> str:
    """Return the alias that is pulled where none is named: TENCOST_ALIAS of the environment, or champion.

    Raises:
        ConfigError: TENCOST_ALIAS is no alias.
    """
    alias = os.environ.get(ALIAS_VARIABLE) or CHAMPION
    if not re.fullmatch(ALIAS, alias):
        raise ConfigError(
            f"{ALIAS_VARIABLE} must be an alias such as staging or production, found {alias!r}. Unset it for champion"
        )
    return alias
