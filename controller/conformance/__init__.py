"""The engine contract as checks that anyone can run against a live engine.

Each check proves one sentence of `docs/engine-protocol.md`. `suite.run` runs them against a socket;
`sitsctl conformance` prints what they found.
"""
