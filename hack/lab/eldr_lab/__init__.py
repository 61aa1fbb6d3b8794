"""Research on what ELDR brings and why: nothing of the product, of its tests or of its tools imports it."""
