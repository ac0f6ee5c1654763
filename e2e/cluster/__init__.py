"""A real Kubernetes for tests and the demo, and the images that run on it, made without an image registry.

Command line: `python -m e2e.cluster --help`. For other code: `programs.ensure()`, `kind.up()`,
`kind.down()`, `kind.kubeconfig()`, `kind.env()`, `kind.load()`, `images.build()`. Every failure that a
user can do something about is an `errors.ClusterError` whose text says what to do.
"""
