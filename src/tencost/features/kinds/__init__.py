"""The feature kinds, one module each: its attribute KIND, a :class:`tencost.features.kind.FeatureKind`, says all."""
