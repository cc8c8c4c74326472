"""Blocks of KV memory as bookkeeping: who holds which block, what is cached, what may be evicted.

Pure: no tensor is touched here. The cache decides and puts moves into the plan; the runtime performs them.
"""
