"""Client library: bulk loads and exports (`stele.client.bulk`), and the Spark data source
(`stele.client.spark`)."""
