"""The stages about whole networks; they alone of the room touch configured paths."""
