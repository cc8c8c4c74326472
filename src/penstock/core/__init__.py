"""Pure data that every room shares: requests, parameters, step plans and results, events, errors, configuration.

Nothing here imports torch, reads a clock, opens a socket or looks at the environment.
"""
