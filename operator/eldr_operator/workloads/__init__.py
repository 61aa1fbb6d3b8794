"""What runs for an EldrDeployment: engines, routers, and what they need around them."""
