"""The controller against a simulated engine: what settings would do, in seconds instead of hours.

Nothing that runs in the service imports this. Whatever comes out of it is labelled simulated.
"""
