"""What options mean: they are resolved into a configuration, with a reason for each value. Pure, as `core` is."""
