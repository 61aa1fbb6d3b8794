"""Synthetic and captured requests, and pools of one router and equal engines that serve them."""
