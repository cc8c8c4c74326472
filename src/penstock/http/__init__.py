"""HTTP as a transport: connections, heads, bodies, TLS, bounds on what a client holds, an orderly end, error bodies."""
