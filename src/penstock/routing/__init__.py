"""Which replica a request goes to, and why: state in, choice and reason out."""
