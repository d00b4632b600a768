"""What a tree teaches, as pure functions of stored trees."""
