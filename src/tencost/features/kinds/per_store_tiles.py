"""`per_store_tiles`: the rows of per_store with the columns of tiles appended to each."""

from tencost.features.joined import joined
from tencost.features.kinds import per_store, tiles

KIND = joined({"per_store": per_store.KIND, "tiles": tiles.KIND})
