"""What clients of an MPS control daemon of its own may have of a GPU: set, kept, put back."""
