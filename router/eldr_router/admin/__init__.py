"""The admin port: what operators, the fit and other routers ask."""
