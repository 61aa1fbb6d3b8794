"""Discrete-event simulation of a pool of decode engines under the policies that the router runs."""
