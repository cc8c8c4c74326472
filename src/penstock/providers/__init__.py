"""Hosted APIs that answer in the place of own machines: what they are asked, and their answers as clients get them."""
