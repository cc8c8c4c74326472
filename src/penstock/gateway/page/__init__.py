"""The live page of a gateway: its fleet as it changes, requests on their way, and a place to chat with its models."""
