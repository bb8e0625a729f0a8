"""The kernel's side: programs, their loader, map layouts, readers and the feature probe."""
