"""What grows with streams, cgroups, connections and CPUs, how, and where it stops."""
