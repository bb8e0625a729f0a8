"""A machine to try things in: Debian 12 with systemd on a Debian kernel of choice, in QEMU.

The rig knows nothing of the project under test. It builds an image, fetches kernels, boots one
with a directory as payload, and brings back the payload's exit status and its results.
"""
