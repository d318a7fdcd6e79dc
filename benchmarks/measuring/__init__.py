"""How everything here is measured: rounds, ratios, processor time, memory, cores, tables."""
