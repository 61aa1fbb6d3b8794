"""A small trained mixture-of-experts model for tests: texts, variants, exact references."""
