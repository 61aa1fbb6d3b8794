"""`eldr status`: what an EldrDeployment has been through, on one screen. JSON in, words out; no maths, no operator."""
