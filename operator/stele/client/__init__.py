"""Stele for programs: bulk loads and exports (`stele.client.bulk`), and the same for Spark
(`stele.client.spark`).
"""
