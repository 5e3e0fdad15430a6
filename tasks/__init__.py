"""The product: what happens to rows."""
