"""Decisions: policy, signals, attribution, models, laws, guards, journal and the fast loop."""
