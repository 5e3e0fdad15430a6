"""Plain values that stages pass: schema, types, settings, plan, units, versions."""
