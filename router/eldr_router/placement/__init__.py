"""Where a request goes: affinity, experts, policies, the table."""
