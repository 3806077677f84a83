"""Learned cost models for tensor programs: measured, versioned, compared, and served to TVM's MetaSchedule."""

__version__ = "0.1.0"
