"""The reference engine: a small continuous-batching server that really computes."""
