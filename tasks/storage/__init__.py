"""Files: which may be used, listed, opened, written whole, published."""
