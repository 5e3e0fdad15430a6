"""What a run is asked to do, and its fingerprints."""
