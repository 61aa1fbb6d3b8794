"""Long contexts on real engines."""
