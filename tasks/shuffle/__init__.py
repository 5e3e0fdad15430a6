"""Where each row goes and how it gets there: order, pieces, exchanges, parts."""
