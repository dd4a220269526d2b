"""What leaves no trace of a person: find private values in text and replace them, or drop the text."""
