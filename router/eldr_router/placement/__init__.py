"""Where a request goes: prefix affinity, expected experts, policies, the routing table."""
