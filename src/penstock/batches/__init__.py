"""Batches: files that are uploaded, the requests in them, and what runs these."""
