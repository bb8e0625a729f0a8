"""The demonstration: one node, one engine, a real trace and bad neighbours."""
