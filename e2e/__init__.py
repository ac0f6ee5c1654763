"""Everything that runs Stele as a whole: the test cluster, scenarios and the demo."""
