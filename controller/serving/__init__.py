"""The engine's half of the contract: leases, calls and the admin socket, for anyone who serves it.

Standard library only, and Python 3.10: it also runs inside other people's engines.
"""
