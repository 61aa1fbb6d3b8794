"""A small trained mixture-of-experts model for tests: its texts, its training, exact references, its statistics."""
