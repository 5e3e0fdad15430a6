"""The language of Lambda, Filter and source.filter: read, typed, evaluated."""
