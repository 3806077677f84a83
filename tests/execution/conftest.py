"""The small collection for the tests of this room."""

from small_collection import *  # noqa: F403
