"""What load comes next: small online predictors, and a choice between them."""
