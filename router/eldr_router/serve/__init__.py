"""A request on its way: which path it takes, and the two legs of a completion."""
