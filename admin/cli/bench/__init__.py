"""Load on one function: `fnctl bench` measures latency, throughput and cold starts."""
