"""Many replicas behind one address: which there are, what goes to which of them, and back."""
