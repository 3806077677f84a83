"""`per_store_tiles`: the rows of per_store with the columns of tiles appended to each."""

from tencost.features.kinds import per_store, tiles
from tencost.features.rows.joined import joined

KIND = joined({"per_store": per_store.KIND, "tiles": tiles.KIND})
