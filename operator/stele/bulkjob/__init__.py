"""One bulk load or export, by Spark on this machine; and the server of the pod that runs it."""
