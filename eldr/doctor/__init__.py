"""`eldr doctor`: what keeps an EldrDeployment from serving as it should, and what to do."""
