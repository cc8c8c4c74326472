"""HTTP: requests parsed into valid types, routes, streaming, error bodies."""
