"""The service: daemon, discovery, streams, metrics, admin API and sitsctl."""
