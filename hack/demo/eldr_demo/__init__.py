"""The whole loop on one machine: control plane, chart, deployment, traffic, fits, and a table of what they did."""
