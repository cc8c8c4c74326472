"""Number formats of weights, and how weights get into them."""
