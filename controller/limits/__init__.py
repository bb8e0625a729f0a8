"""What limits the processes beside an engine, and how each limit is undone."""
