"""The feature kinds, one module each; its attribute KIND is a :class:`tencost.features.rows.kind.FeatureKind`."""
