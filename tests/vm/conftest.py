"""Keep the guest's tests out of a host's run: they set up cgroups and BPF as they please."""

import os

collect_ignore = [] if os.environ.get("SITS_VM_GUEST") else ["guest"]
