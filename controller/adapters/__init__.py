"""Adapters: processes that serve the engine contract for engines with an interface of their own."""
