"""What a run is asked to do, and the fingerprints of it."""
