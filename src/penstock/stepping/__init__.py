"""A step's batch: rows, gathering, block tables, and what a step needs of models and of KV storages."""
