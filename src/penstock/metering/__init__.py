"""What was used of what somebody may use: amounts reserved before, and settled after."""
