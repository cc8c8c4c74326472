"""State that outlives the server: a folder that one server has at a time, databases, and the contents of files."""
