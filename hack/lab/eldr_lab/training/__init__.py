"""How the small model of `hack/tiny_moe` was trained."""
