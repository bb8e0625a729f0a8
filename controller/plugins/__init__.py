"""What runs inside an engine: each module needs nothing but Python (3.10 on) and imports no other.

So any of them can be put on an engine's path by itself.
"""
