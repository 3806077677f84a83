"""One row for each thing that a user can do, with an example that `make capabilities` runs."""
