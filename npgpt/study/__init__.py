"""Tools that study the layers' running source: what each line made, what its gradient is, and a proof for that line."""
