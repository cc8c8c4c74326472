"""Calls of tools in a model's text: read in the formats that models write, and enforced as a grammar."""
