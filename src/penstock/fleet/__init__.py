"""Starting, updating and scaling the replicas of a fleet, wherever they run."""
