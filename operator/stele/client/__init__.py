"""Client library: bulk loads and exports (`stele.client.bulk`), the Spark data source
(`stele.client.spark`), and a small client of RESP (`stele.client.resp`)."""
